"""`Backend` for an OpenAI-compatible server by URL. It is somebody else's: never started, never stopped,
only looked at; what it answers passes through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import BackendInfo, BackendState, BackendStatus, Batching, Work
from llm_runtime.engines.config import OpenAIConfig
from llm_runtime.engines.http_stream import HttpStream
from llm_runtime.engines.openai.calls import upstream_body, upstream_call
from llm_runtime.engines.openai.names import configured_names
from llm_runtime.engines.openai.probe import Probe
from llm_runtime.engines.openai.refusals import refusal
from llm_runtime.engines.openai.target import Target, endpoints_of
from llm_runtime.engines.openai.watch import UpstreamWatch
from llm_runtime.engines.stream_run import StreamRun
from llm_runtime.engines.upstream.client import Upstream
from llm_runtime.engines.upstream.protocol import Limits
from llm_runtime.wire.shapes import Shapes

log = structlog.get_logger(__name__)

NAME = "openai"
MAX_SHAPES = 256
LINGER_S = 1.0
"""How long a connection may go on after its answer was complete, for the last bytes of the transfer."""


_READY = BackendStatus(BackendState.READY)
_STARTING = BackendStatus(BackendState.STARTING)


class OpenAIBackend:
    """One upstream with all its models, which share its slots. Owned by the runtime; everything but
    `start` and `aclose` is called from the loop. It is also the owner of its streams."""

    def __init__(
        self,
        config: OpenAIConfig,
        *,
        model_name: str | None,
        num_slots: int,
        model_created: int,
        default_max_tokens: int | None,
        clock: Clock,
    ) -> None:
        """model_name: serve only that model. default_max_tokens: None leaves requests without a cap to
        the upstream. Raises ConfigError."""
        self._target = Target.of(config)
        self._configured = configured_names(model_name, config.models)
        self._names: Mapping[str, str] = self._configured
        self._default_max_tokens = default_max_tokens
        self.now = clock.now
        self._upstream = Upstream(
            self._target.address,
            self._target.headers,
            Limits(connect_timeout_s=config.connect_timeout_s),
        )
        self._watch = UpstreamWatch(
            Probe(self._upstream, self._target, config.health_path, config.health_timeout_s),
            clock,
            interval_s=config.health_interval_s,
            max_misses=config.max_health_misses,
            on_models=self._models_listed,
            on_change=self._changed,
        )
        self.signs = self._watch.signs
        self._paths = {kind: self._target.path(kind) for kind in EndpointKind}
        self._refusing = partial(refusal, upstream=self._target.name)
        self._streams: set[HttpStream] = set()
        self._shapes: dict[tuple[EndpointKind, str, bool], Shapes] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._on_change: Callable[[], None] | None = None
        self.info = BackendInfo(
            name=NAME,
            model=next(iter(self._names), NAME),
            batching=Batching.CONTINUOUS,
            num_slots=num_slots,
            context_tokens=None,
            endpoints=endpoints_of(config),
            model_created=model_created,
            models=tuple(self._names),
            content_parts=None,
        )

    # ---- the upstream's state

    @property
    def status(self) -> BackendStatus:
        if self._closed:
            return BackendStatus(BackendState.STOPPED, "stopped")
        if self._task is not None and self._task.done():
            return BackendStatus(BackendState.FAILED, "the upstream's watch failed")
        found = self._watch.reachability
        if found.up:
            return _READY
        if found.up is None:
            return _STARTING
        return BackendStatus(BackendState.CRASHED, found.reason, fail_fast=True)

    async def start(self, on_change: Callable[[], None]) -> None:
        """Returns when the upstream answered; goes on looking for it when it did not at first."""
        self._on_change = on_change
        self._task = asyncio.get_running_loop().create_task(self._watch.run(), name=f"{NAME} watch")
        self._task.add_done_callback(self._watch_ended)
        await self._watch.first_look()

    async def aclose(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._upstream.aclose()
        for stream in tuple(self._streams):
            stream.lease.free()  # its task may be busy elsewhere and has not noticed

    def _models_listed(self, models: list[str] | None) -> bool:
        if not self._configured and models:
            self._names = {name: name for name in models}
            if self.info.models != tuple(models):
                log.info("upstream.models", num_models=len(models))
                self.info = replace(self.info, model=models[0], models=tuple(models))
                if self._watch.reachability.up:
                    self._changed()  # else it is told that the upstream is there, next
        elif models is not None:
            missing = sorted(set(self._names.values()) - set(models))
            if missing:
                log.warning("upstream.models_missing", models=missing[:20])
        return bool(self._names)

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("upstream.watch_failed", exc_info=task.exception())
            self._changed()

    # ---- requests

    def check(self, request: RuntimeRequest) -> None:
        """Nothing: the upstream judges what it is asked."""

    def open(self, batch: Sequence[Work]) -> StreamRun:
        return StreamRun({work.request.id: self._stream(work) for work in batch})

    def _stream(self, work: Work) -> HttpStream:
        request = work.request
        name = self._names.get(request.model, request.model)
        body = upstream_body(request, name, self._default_max_tokens)
        call = upstream_call(
            request,
            self._paths[request.kind],
            body,
            self._refusing,
            send_once=work.send_once,
            shapes=self._shapes_for(request) if request.stream else None,
        )
        stream = HttpStream(self._upstream, call, work.lease, self)
        self._streams.add(stream)
        return stream

    def _shapes_for(self, request: RuntimeRequest) -> Shapes:
        key = (request.kind, request.model, request.include_usage)
        shapes = self._shapes.get(key)
        if shapes is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            shapes = self._shapes[key] = Shapes()
        return shapes

    def signs_of_life(self) -> float | None:
        return self.signs.seen_at

    # ---- `StreamOwner`

    def first_token(self, stream: HttpStream, now: float, *, whole: bool) -> None:
        """Nothing: nobody here waits for it."""

    def same_process(self) -> bool:
        return not self._closed

    def lost(self, error: LLMRuntimeError, stream: HttpStream) -> LLMRuntimeError:
        self._watch.doubt()
        return error

    def release(self, stream: HttpStream) -> None:
        """An upstream by URL has no way to confirm: its slot is free when the connection is closed."""
        self._streams.discard(stream)
        exchange = stream.exchange
        if exchange is not None and not exchange.ended:
            if stream.answered:
                asyncio.get_running_loop().call_later(LINGER_S, exchange.abort)
            else:
                exchange.abort()
        elif exchange is not None and not exchange.has_started:
            self._watch.doubt()  # nobody took it
        stream.lease.free()
