"""An engine that does what a test tells it: hold its tokens, fail, refuse, ignore a cancellation, crash."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from llm_runtime.core.clock import Clock, SystemClock
from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import (
    BackendInfo,
    BackendState,
    BackendStatus,
    Batching,
    EngineStream,
    Finished,
    Run,
    Work,
)
from llm_runtime.wire.encode import ChunkEncoder, PlainChoice
from tests.support.recorder import Changes

MODEL = "scripted"
PROMPT_TOKENS = 7
_PREFIXES = {EndpointKind.CHAT: "chatcmpl-", EndpointKind.COMPLETIONS: "cmpl-"}


class ScriptedStream:
    """One request in the engine. Implements `EngineStream`; `say`, `end` and `fail` are the test's."""

    def __init__(self, work: Work, backend: ScriptedBackend) -> None:
        request = work.request
        self.request = request
        self.lease = work.lease
        self.finished: Finished | None = None
        self.has_token = False
        self.first_token_at: float | None = None
        self.num_pulled = 0
        self.cancelled = False
        self._backend = backend
        self._items: deque[tuple[bytes, bool, Finished | None] | LLMRuntimeError | Exception] = deque()
        self._texts: list[str] = []
        self._poked = False
        self._waiter: asyncio.Future[None] | None = None
        self._encoder = ChunkEncoder(
            request.kind,
            _PREFIXES[request.kind] + request.id,
            request.created,
            request.model,
            include_usage=request.include_usage,
        )

    # ---- the test's side

    def role(self) -> None:
        """The event that opens a choice: bytes for the client, but no token."""
        self._put((self._encoder.role(0), False, None))

    def say(self, *texts: str) -> None:
        """One wake-up of the client each."""
        for text in texts:
            if self.first_token_at is None:
                self.first_token_at = self._backend.clock.now()
            self._texts.append(text)
            if self.request.stream:
                self._put((self._encoder.delta(0, text), True, None))

    def end(self, reason: str = "stop", *, with_last_bytes: bool = True) -> None:
        """The engine is done: its slots are free at once, whether or not anybody reads on."""
        encoder, usage = self._encoder, self.spent()
        finished = Finished(usage, reason)
        if self.request.stream:
            last = encoder.finish(0, reason) + encoder.usage(usage) + encoder.done()
        else:
            last = encoder.body([PlainChoice("".join(self._texts), reason)], usage)
        if with_last_bytes:
            self._put((last, bool(self._texts) and not self.request.stream, finished))
        else:
            self._put((last, False, None))
            self._put((b"", False, finished))
        self.lease.free()

    def fail(self, error: Exception, *, free: bool = True) -> None:
        """Raised once the reader has read what is there."""
        self._put(error)
        if free:
            self.lease.free()

    def confirm_cancel(self) -> None:
        self.lease.free()

    # ---- the reader's side

    def __aiter__(self) -> EngineStream:
        return self

    async def __anext__(self) -> bytes | Finished:
        assert not self.cancelled, "a stream must not be pulled after it was cancelled"
        while not self._items:
            if self._poked:
                self._poked = self.has_token = False
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._poked = False
        item = self._items.popleft()
        if isinstance(item, Exception):
            raise item
        data, self.has_token, finished = item
        self.finished = finished or self.finished
        self.num_pulled += 1
        self._backend.note()
        if not data:
            assert finished is not None
            return finished
        return data

    def spent(self) -> Usage:
        return Usage(PROMPT_TOKENS, len(self._texts))

    def poke(self) -> None:
        self._poked = True
        self._wake()

    def _put(self, item: tuple[bytes, bool, Finished | None] | Exception) -> None:
        self._items.append(item)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _ScriptedRun:
    def __init__(self, streams: dict[str, ScriptedStream], backend: ScriptedBackend) -> None:
        self._streams = streams
        self._backend = backend

    def stream(self, request_id: str) -> EngineStream:
        return self._streams[request_id]

    def cancel(self, request_id: str) -> None:
        stream = self._streams[request_id]
        if not stream.cancelled:
            stream.cancelled = True
            if self._backend.confirms_cancels:
                asyncio.get_running_loop().call_soon(stream.confirm_cancel)
            self._backend.note()


class ScriptedBackend(Changes):
    """Implements `Backend`.

    confirms_cancels: whether a cancelled request's slots become free by themselves. on_open: told of
    every request the engine gets, to script its answer at once. opening_fails: what `open` raises.
    refusal: what `check` raises. start_fails: what `start` raises.
    """

    def __init__(
        self,
        *,
        slots: int = 2,
        static: bool = False,
        name: str = "scripted",
        model: str = MODEL,
        clock: Clock | None = None,
        on_open: Callable[[ScriptedStream], None] | None = None,
    ) -> None:
        super().__init__()
        self.clock: Clock = clock or SystemClock()
        self.confirms_cancels = True
        self.on_open = on_open
        self.opening_fails: Exception | None = None
        self.refusal: LLMRuntimeError | None = None
        self.start_fails: Exception | None = None
        self.starts_ready = True
        self.streams: list[ScriptedStream] = []
        self.batches: list[list[str]] = []
        self.closed = False
        self._on_change: Callable[[], None] | None = None
        self._status = BackendStatus(BackendState.STARTING)
        self._info = BackendInfo(
            name=name,
            model=model,
            batching=Batching.STATIC if static else Batching.CONTINUOUS,
            num_slots=slots,
            context_tokens=4096,
            endpoints=frozenset({EndpointKind.CHAT, EndpointKind.COMPLETIONS}),
            model_created=1,
        )

    # ---- Backend

    @property
    def info(self) -> BackendInfo:
        return self._info

    @property
    def status(self) -> BackendStatus:
        return self._status

    def check(self, request: RuntimeRequest) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def start(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        if self.start_fails is not None:
            raise self.start_fails
        if self.starts_ready:
            self._status = BackendStatus(BackendState.READY)

    def open(self, batch: Sequence[Work]) -> Run:
        assert self._status.state is BackendState.READY, "opened while not ready"
        if self.opening_fails is not None:
            raise self.opening_fails
        taken = sum(s.lease.num_slots for s in self.streams if s.lease.held)
        wanted = sum(work.request.num_slots for work in batch)
        assert taken + wanted <= self._info.num_slots, "more than the engine has slots for"
        streams = {work.request.id: ScriptedStream(work, self) for work in batch}
        self.batches.append(list(streams))
        self.streams.extend(streams.values())
        for stream in streams.values():
            if self.on_open is not None:
                self.on_open(stream)
        self.note()
        return _ScriptedRun(streams, self)

    def signs_of_life(self) -> float | None:
        return None

    async def aclose(self) -> None:
        self.closed = True
        for stream in self.streams:
            stream.lease.free()
        self.become(BackendState.STOPPED)

    # ---- the test's side

    def become(self, state: BackendState, reason: str | None = None) -> None:
        self._status = BackendStatus(state, reason)
        if self._on_change is not None:
            self._on_change()

    @property
    def ids(self) -> list[str]:
        """What the engine got, in that order."""
        return [stream.request.id for stream in self.streams]

    async def got(self, number: int) -> ScriptedStream:
        """The request it got as the number-th, counted from 0, when it has."""
        await self.until(lambda: len(self.streams) > number, f"request {number} in the engine")
        return self.streams[number]

    async def pulled(self, stream: ScriptedStream, num_items: int) -> None:
        await self.until(lambda: stream.num_pulled >= num_items, f"{num_items} pulls")

    async def cancelled(self, stream: ScriptedStream) -> None:
        await self.until(lambda: stream.cancelled, f"the cancellation of {stream.request.id}")


def answer(*texts: str) -> Callable[[ScriptedStream], None]:
    """For `on_open`: says all of it at once and ends."""

    def speak(stream: ScriptedStream) -> None:
        stream.role()
        stream.say(*texts)
        stream.end()

    return speak
