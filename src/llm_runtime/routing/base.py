"""The `RoutingPolicy` seam: where a request runs. Pure functions over snapshots of our own counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from llm_runtime.core.request import RuntimeRequest


class ReplicaView:
    """One replica at one instant. num_free_slots already counts what this decision has placed.

    accepts_batch: a static engine that is idle, or any continuous one that is not being tried out.
    on_trial: it takes one request at a time, to see whether it works again.
    resting: it has asked to be left alone for a while. models: those it has; None: all of its pool's.
    """

    __slots__ = (
        "accepts_batch", "draining", "id", "models", "num_free_slots", "num_slots", "on_trial", "ready",
        "resting", "suspect",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913, PLR0917 - a record, made by position for every request
        self,
        id: str,
        num_slots: int,
        num_free_slots: int,
        ready: bool,
        draining: bool = False,
        suspect: bool = False,
        accepts_batch: bool = True,
        on_trial: bool = False,
        resting: bool = False,
        models: frozenset[str] | None = None,
    ) -> None:
        self.id: Final = id
        self.num_slots: Final = num_slots
        self.num_free_slots: Final = num_free_slots
        self.ready: Final = ready
        self.draining: Final = draining
        self.suspect: Final = suspect
        self.accepts_batch: Final = accepts_batch
        self.on_trial: Final = on_trial
        self.resting: Final = resting
        self.models: Final = models

    def with_free(self, num_free_slots: int) -> ReplicaView:
        """The same replica with another number of them."""
        return ReplicaView(
            self.id, self.num_slots, num_free_slots, self.ready, self.draining, self.suspect,
            self.accepts_batch, self.on_trial, self.resting, self.models,
        )  # fmt: skip

    def serves(self, model: str) -> bool:
        return self.models is None or model in self.models


class RoutingPolicy(Protocol):
    def score(self, request: RuntimeRequest, replicas: Sequence[ReplicaView], now: float) -> Sequence[float]:
        """One score per replica, 0 (worst) to 1 (best). Pure."""
        ...
