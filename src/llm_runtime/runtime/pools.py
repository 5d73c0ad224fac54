"""Which models there are, which endpoints each has, and who runs their requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from llm_runtime.core.errors import BackendUnavailable, ModelNotFound, UnsupportedEndpoint
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.base import BackendInfo
from llm_runtime.runtime.dispatcher import Dispatcher

MAX_SHOWN_NAME: Final = 80


class Pool:
    """The models and endpoint kinds that share slots: one dispatcher, one queue.

    Most pools have one model. An upstream by URL may have many, and which is known once it answers.
    """

    __slots__ = ("_backend", "dispatcher", "kinds", "model")

    def __init__(self, model: str, kinds: frozenset[EndpointKind], dispatcher: Dispatcher) -> None:
        self.model: Final = model
        self.kinds: Final = kinds
        self.dispatcher: Final = dispatcher
        self._backend: Final = next(iter(dispatcher.replicas.values())).backend

    @property
    def info(self) -> BackendInfo:
        return self._backend.info

    @property
    def models(self) -> tuple[str, ...]:
        """What clients may ask for; empty while that is not known yet."""
        if self.info.models is None:
            return (self.model,)
        names = (name for replica in self.dispatcher.replicas.values() for name in replica.backend.info.names)
        return tuple(dict.fromkeys(names))


class ModelIndex:
    """Owned by the runtime. `refresh` after engines changed; reading is safe from any thread.

    on_change: told of all names when they have changed.
    """

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools
        self._by_model: dict[str, dict[EndpointKind, Pool]] = {}
        self.on_change: Callable[[tuple[str, ...]], None] | None = None
        self.refresh()

    def refresh(self) -> None:
        index: dict[str, dict[EndpointKind, Pool]] = {}
        for pool in self._pools:
            for model in pool.models:
                index.setdefault(model, {}).update(dict.fromkeys(pool.kinds, pool))
        known, self._by_model = self._by_model, index
        if self.on_change is not None and known.keys() != index.keys():
            self.on_change(tuple(index))

    def find(self, model: str, kind: EndpointKind) -> Pool:
        """Raises ModelNotFound; UnsupportedEndpoint where the model does not serve this endpoint;
        BackendUnavailable where nobody can know yet whether the model exists."""
        kinds = self._by_model.get(model)
        if kinds is None:
            if not all(pool.models for pool in self._pools):
                raise BackendUnavailable("No engine is available: its models are not known yet.")
            shown = model if len(model) <= MAX_SHOWN_NAME else model[: MAX_SHOWN_NAME - 3] + "..."
            raise ModelNotFound(f"The model '{shown}' does not exist.", param="model")
        pool = kinds.get(kind)
        if pool is None:
            raise UnsupportedEndpoint(f"The model '{model}' does not support this endpoint.", param="model")
        return pool

    def serves(self, model: str, kind: EndpointKind) -> bool:
        return kind in self._by_model.get(model, ())

    @property
    def models(self) -> Mapping[str, Pool]:
        """One of its pools for each model."""
        return {model: next(iter(kinds.values())) for model, kinds in self._by_model.items()}
