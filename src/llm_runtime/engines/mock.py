"""The mock engine: exact timing and exact counts without a model. Runs in the loop, batches statically.

One batch at a time: a prefill once, then steps that all its members share. Nothing can join a batch
under way. It behaves at the seam as a real engine must, including back-pressure and cancellation, so
that everything above it can be tested and measured against known numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendError, BackendUnavailable
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import (
    BackendInfo,
    BackendState,
    BackendStatus,
    Batching,
    EngineStream,
    Run,
    Work,
)
from llm_runtime.engines.config import MockConfig
from llm_runtime.engines.mock_request import check_request
from llm_runtime.engines.mock_stream import MockStream


class MockBatch:
    """A batch under way. Implements `Run`; owned by the backend.

    One timer steps all members at absolute instants, so that lateness never adds up. It rests while
    every member stands still. started_at: of the loop's clock; on_over: told when the engine was free.
    """

    def __init__(
        self,
        works: Sequence[Work],
        config: MockConfig,
        clock: Clock,
        started_at: float,
        on_over: Callable[[float], None],
    ) -> None:
        self._streams = {
            work.request.id: MockStream(work, config.context_tokens, self._drained) for work in works
        }
        self._live = list(self._streams.values())
        self._clock = clock
        self._step_s = config.decode_latency_ms / 1000.0
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self.progressed_at = clock.now()
        self._next_at = started_at + config.prefill_latency_ms / 1000.0 + self._step_s
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(self._next_at, self._step)
        for work in works:
            work.lease.run()

    def stream(self, request_id: str) -> EngineStream:
        return self._streams[request_id]

    def cancel(self, request_id: str) -> None:
        """The slots are free in the next turn of the loop: the caller's own books come first."""
        stream = self._streams[request_id]
        if stream not in self._live:
            return
        self._live.remove(stream)
        stream.leave()
        stream.fail(BackendError("The request was cancelled.", reason="cancelled"))
        if not self._live:
            self._stop()
        self._loop.call_soon(stream.lease.free)

    def close(self, error: BackendError) -> None:
        """Ends everything at once: the engine stops."""
        streams, self._live = self._live, []
        self._stop()
        for stream in streams:
            stream.leave()
            stream.fail(error)
            stream.lease.free()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_over(self._loop.time())

    def _step(self) -> None:
        self._timer = None
        self.progressed_at = now = self._clock.now()
        all_stalled = True
        some_ended = False
        for stream in self._live:
            stream.step(now)
            all_stalled &= stream.stalled
            some_ended |= stream.ended
        if some_ended:
            self._release_ended()
        if self._live and not all_stalled:
            self._next_at += self._step_s
            self._timer = self._loop.call_at(self._next_at, self._step)

    def _release_ended(self) -> None:
        ended = [stream for stream in self._live if stream.ended]
        self._live = [stream for stream in self._live if not stream.ended]
        if not self._live:
            self._on_over(self._next_at)  # before the last lease: its end may bring the next batch
        for stream in ended:
            stream.leave()
            stream.lease.free()

    def _drained(self) -> None:
        if self._timer is None and self._live:
            self._next_at = self._loop.time() + self._step_s
            self._timer = self._loop.call_at(self._next_at, self._step)


class MockBackend:
    """Implements `Backend`. Owned by the runtime, used from the loop's thread only.

    num_slots: the largest batch.
    """

    def __init__(
        self, config: MockConfig, *, model: str, num_slots: int, model_created: int, clock: Clock
    ) -> None:
        self._config = config
        self._clock = clock
        self._info = BackendInfo(
            name="mock",
            model=model,
            batching=Batching.STATIC,
            num_slots=num_slots,
            context_tokens=config.context_tokens,
            endpoints=frozenset({EndpointKind.CHAT, EndpointKind.COMPLETIONS}),
            model_created=model_created,
        )
        self._status = BackendStatus(BackendState.STARTING)
        self._batch: MockBatch | None = None
        self._free_at: float | None = None
        self._progressed_at: float | None = None
        self._on_change: Callable[[], None] | None = None

    @property
    def info(self) -> BackendInfo:
        return self._info

    @property
    def status(self) -> BackendStatus:
        return self._status

    def check(self, request: RuntimeRequest) -> None:
        check_request(request, self._config.context_tokens)

    async def start(self, on_change: Callable[[], None]) -> None:
        if self._status.state is BackendState.STOPPED:
            raise BackendUnavailable("The engine was stopped.")
        self._on_change = on_change
        self._status = BackendStatus(BackendState.READY)

    def open(self, batch: Sequence[Work]) -> Run:
        """Raises RuntimeError if a batch is under way: that is the caller's mistake.

        A batch that follows another at once starts when that one was due to end, not when our timer
        noticed: an engine that is never idle keeps exact time.
        """
        if self._batch is not None:
            raise RuntimeError("the mock engine runs one batch at a time")
        started_at = asyncio.get_running_loop().time() if self._free_at is None else self._free_at
        run = self._batch = MockBatch(batch, self._config, self._clock, started_at, self._over)
        if self._status.state is not BackendState.READY:
            asyncio.get_running_loop().call_soon(run.close, BackendUnavailable("The engine is stopped."))
        return run

    def _over(self, free_at: float) -> None:
        self._progressed_at = self.signs_of_life()
        self._batch = None
        self._free_at = free_at
        asyncio.get_running_loop().call_soon(self._idle)

    def _idle(self) -> None:
        """Whoever comes from now on was not waiting when the engine became free."""
        self._free_at = None

    def signs_of_life(self) -> float | None:
        return self._progressed_at if self._batch is None else self._batch.progressed_at

    async def aclose(self) -> None:
        if self._status.state is BackendState.STOPPED:
            return
        self._status = BackendStatus(BackendState.STOPPED)
        if self._batch is not None:
            self._batch.close(BackendUnavailable("The engine was stopped."))
        if self._on_change is not None:
            self._on_change()
