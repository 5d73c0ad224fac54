"""One engine inside a Ray replica: requests in, frames out. Knows nothing of Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import structlog

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendError, BackendUnavailable, LLMRuntimeError
from llm_runtime.core.lease import Lease
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.engines.base import Backend, BackendState, Batching, EngineStream, Finished, Run, Work
from llm_runtime.engines.ray.frames import pack, pack_end, pack_error, unpack_request
from llm_runtime.engines.ray.rules import facts_of

log = structlog.get_logger(__name__)

ENGINE_WAIT_S = 2.0
"""How long a request waits here for an engine that is being restarted."""

_HOPELESS = (BackendState.FAILED, BackendState.STOPPED)


class _Lane:
    """A backend and the requests in it."""

    __slots__ = ("backend", "is_static", "num_running")

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.is_static = backend.info.batching is Batching.STATIC
        self.num_running = 0

    @property
    def ready(self) -> bool:
        return self.backend.status.state is BackendState.READY

    @property
    def open(self) -> bool:
        """Whether it can take one more request, as far as slots allow."""
        return self.ready and not (self.is_static and self.num_running)


class EngineService:
    """Owned by one replica; every method runs on its loop. `start` before anything else.

    backends: all alike. Of an engine that batches by itself one is enough; of one that takes a batch at a
    time there must be as many as requests may run at once. num_slots: of all of them together.
    """

    def __init__(self, backends: Sequence[Backend], num_slots: int, clock: Clock) -> None:
        self._lanes = [_Lane(backend) for backend in backends]
        self._num_free = num_slots
        self._clock = clock
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Returns when every engine is ready. Raises what `Backend.start` raises, leaving nothing behind."""
        try:
            for lane in self._lanes:
                await lane.backend.start(self._note_change)
        except BaseException:
            await self.aclose()
            raise

    def facts(self) -> dict[str, Any]:
        """For those who send requests; plain JSON."""
        return facts_of(self._lanes[0].backend)

    def check_health(self) -> None:
        """Raises where nobody will start the engine again, so that Ray starts another replica."""
        for lane in self._lanes:
            status = lane.backend.status
            if status.state in _HOPELESS:
                reason = status.reason or "no reason given"
                raise BackendUnavailable(f"The engine is {status.state.value}: {reason}")

    async def aclose(self) -> None:
        await asyncio.gather(*(lane.backend.aclose() for lane in self._lanes))

    async def answer(self, data: bytes) -> AsyncGenerator[bytes, None]:
        """Frames of one request; what goes wrong is the last one. Ends when the engine has let go of the
        request, also where the reader gave up."""
        request = unpack_request(data, self._clock.now())
        lane: _Lane | None = None
        try:
            self._lanes[0].backend.check(request)
            lane = await self._lane_for(request)
        except LLMRuntimeError as error:
            yield pack_error(error, Usage(estimated=True))
        if lane is None:
            return
        let_go = asyncio.Event()
        lane.num_running += 1
        self._num_free -= request.num_slots
        begun_at = self._clock.now()
        lease = Lease(request.id, "engine", request.num_slots, begun_at, self._let_go(lane, let_go))
        try:
            run = lane.backend.open([Work(request, lease)])
        except LLMRuntimeError as error:
            lease.free()
            yield pack_error(error, Usage(estimated=True))
            return
        try:
            async for frame in self._frames(run, request, begun_at):
                yield frame
        finally:
            if lease.held:
                lease.cancelling(self._clock.now())
                run.cancel(request.id)
                await let_go.wait()

    async def _frames(
        self, run: Run, request: RuntimeRequest, begun_at: float
    ) -> AsyncGenerator[bytes, None]:
        stream = run.stream(request.id)
        try:
            while True:
                item = await stream.__anext__()
                if isinstance(item, Finished):
                    yield self._end(b"", stream, item, begun_at)
                    return
                if stream.finished is not None:
                    yield self._end(item, stream, stream.finished, begun_at)
                    return
                if item:
                    yield pack(item, has_token=stream.has_token, usage=stream.spent())
        except LLMRuntimeError as error:
            yield pack_error(error, stream.spent())
        except StopAsyncIteration:
            yield pack_error(BackendError("The engine ended the answer without a word."), stream.spent())

    def _end(self, data: bytes, stream: EngineStream, finished: Finished, begun_at: float) -> bytes:
        at = stream.first_token_at
        first_token_s = None if at is None else max(at - begun_at, 0.0)
        return pack_end(data, finished, has_token=stream.has_token, first_token_s=first_token_s)

    # ---- room

    async def _lane_for(self, request: RuntimeRequest) -> _Lane:
        """Slots are granted where requests queue, so there is room, or will be as soon as the engine has
        let go of a request that was cancelled. Raises BackendUnavailable for an engine that is down."""
        try:
            async with asyncio.timeout(ENGINE_WAIT_S):
                while True:
                    if self._num_free >= request.num_slots:
                        for lane in self._lanes:
                            if lane.open:
                                return lane
                    if all(lane.backend.status.state in _HOPELESS for lane in self._lanes):
                        break
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            if any(lane.ready for lane in self._lanes):
                raise BackendUnavailable("The engine has no room.", reason="engine_full") from None
        raise BackendUnavailable("The engine is not running.", reason="engine_down")

    def _let_go(self, lane: _Lane, let_go: asyncio.Event) -> Callable[[Lease], None]:
        def freed(lease: Lease) -> None:
            lane.num_running -= 1
            self._num_free += lease.num_slots
            let_go.set()
            self._changed.set()

        return freed

    def _note_change(self) -> None:
        self._changed.set()
