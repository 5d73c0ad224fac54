"""Handles: what the request's own task holds of its request, from the queue to the last byte.

`async with runtime.submit(request) as handle` owns the request. Leaving the block, in whatever way,
settles the outcome exactly once and asks the engine to stop if it is still working. Only the task
that entered may pull; `fail`, `poke`, `client_gone` and the timers only leave a note and wake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Protocol, Self

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import (
    BackendUnavailable,
    ClientGone,
    DeadlineExceeded,
    Evicted,
    LLMRuntimeError,
    QueueTimeout,
    Rejected,
)
from llm_runtime.core.lease import Lease
from llm_runtime.core.outcome import Outcome, RequestRecord, Usage
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.core.timeline import Timeline
from llm_runtime.engines.base import EngineStream, Finished, Run

if TYPE_CHECKING:
    from llm_runtime.runtime.dispatcher import Dispatcher

MAX_ATTEMPTS = 3
MAX_TIMER_S = 3600.0
KEEP_ALIVE = "keep-alive"
WRITE_STALL = "write stall"


class Settle(Protocol):
    """Told of the one end of a request."""

    def __call__(self, record: RequestRecord) -> None: ...


class RequestHandle:
    """One request's life. `keep_alive_s`: silence after which a pull returns b"" with
    `keep_alive_due` set; `write_stall_s`: how long the caller may be busy sending one item.
    """

    def __init__(
        self,
        request: RuntimeRequest,
        dispatcher: Dispatcher,
        *,
        clock: Clock,
        settle: Settle,
        keep_alive_s: float | None = None,
        write_stall_s: float | None = None,
    ) -> None:
        self.request = request
        self.timeline = Timeline(request.arrived_at)
        self.keep_alive_due = False
        self.replica: str | None = None
        self._dispatcher = dispatcher
        self._clock = clock
        self._settle = settle
        self._keep_alive_s = keep_alive_s
        self._write_stall_s = write_stall_s
        self._lease: Lease | None = None
        self._run: Run | None = None
        self._stream: EngineStream | None = None
        self._grant: asyncio.Future[None] | None = None
        self._error: LLMRuntimeError | None = None
        self._task: asyncio.Task[object] | None = None
        self._task_cancelled = False
        self._timer: asyncio.TimerHandle | None = None
        self._pulling = False
        self._touched_at = request.arrived_at  # when the engine's last bytes came
        self._written_at = request.arrived_at  # when the client last got anything
        self._committed = False
        self._attempts = 0
        self._preempting = False

    # ---- owning

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._touched_at = self._written_at = self._clock.now()
        self._dispatcher.enqueue(self)
        self._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        self._abandon()
        if isinstance(error, asyncio.CancelledError) and self._task_cancelled and self._error is not None:
            # Our own cancellation, used to leave a blocked send: it must not travel on.
            assert self._task is not None
            self._task.uncancel()
            error = self._error
            swallow = True
        else:
            swallow = isinstance(error, ClientGone)
        outcome, reason = self._end(error)
        self.timeline.finished_at = self._clock.now()
        counts = self.timeline.itl_counts
        record = RequestRecord(
            request=self.request,
            outcome=outcome,
            reason=reason,
            usage=self.usage or Usage(estimated=True),
            timeline=self.timeline,
            replica=self.replica,
            itl_counts=tuple(counts) if counts is not None else None,
            itl_sum_s=self.timeline.itl_sum_s,
        )
        self._settle(record)
        return swallow

    def _end(self, error: BaseException | None) -> tuple[Outcome, str]:
        finished = self.finished
        if error is None and finished is not None:
            return Outcome.COMPLETED, finished.reason
        if error is None:
            error = self._error or ClientGone("The request was left before its end.")
        if not isinstance(error, LLMRuntimeError):
            if isinstance(error, asyncio.CancelledError):
                return Outcome.CANCELLED, "server_stopped"
            return Outcome.FAILED, "internal_error"
        if isinstance(error, ClientGone):
            return Outcome.CANCELLED, error.reason
        if isinstance(error, Evicted):
            return Outcome.EVICTED, error.reason
        if isinstance(error, DeadlineExceeded):
            return Outcome.TIMED_OUT, error.reason
        if isinstance(error, Rejected):
            return Outcome.REJECTED, error.reason
        return Outcome.FAILED, error.reason

    @property
    def stalled(self) -> bool:
        """Whether it ended because the client did not read."""
        return self._error is not None and self._error.reason == "slow_client"

    @property
    def usage(self) -> Usage | None:
        return self._stream.spent() if self._stream is not None else None

    @property
    def finished(self) -> Finished | None:
        """Known with the last bytes, so that they can be the last write."""
        return self._stream.finished if self._stream is not None else None

    # ---- pulling (the request's own task)

    async def pull(self) -> bytes | Finished:
        """The next bytes for the client, `Finished` at the end, or b"" when only woken.

        Raises what ended the request, an LLMRuntimeError, after telling the engine to stop.
        """
        if self._error is not None:
            self._raise()
        self._pulling = True
        try:
            stream = self._stream
            if stream is None:
                stream = await self._granted_stream()
                if stream is None:
                    return b""
            item = await stream.__anext__()
        except BackendUnavailable as error:
            if self._may_retry(error):
                self._requeue()
                return b""
            raise
        finally:
            self._pulling = False
        if self._error is not None:
            self._raise()
        if item.__class__ is not bytes:
            return item
        if not item:
            if self._preempting and not self._committed:
                self._requeue()
            return item
        self._touched_at = self._written_at = now = self._clock.now()
        if not self._committed:
            self._committed = True
            if self._lease is not None:
                self._lease.run()
        if stream.has_token:
            self.timeline.token(now)
        return item

    def _raise(self) -> NoReturn:
        assert self._error is not None
        self._abandon()
        raise self._error

    async def _granted_stream(self) -> EngineStream | None:
        if self._error is None and self._stream is None:
            self._grant = asyncio.get_running_loop().create_future()
            try:
                await self._grant
            finally:
                self._grant = None
        if self._error is not None:
            self._raise()
        return self._stream

    def _may_retry(self, error: BackendUnavailable) -> bool:
        """No engine took it, nothing was sent, tries are left, and nobody said when to come back."""
        return (
            not self._committed
            and self._error is None
            and self._attempts < MAX_ATTEMPTS
            and error.retry_after_s is None
        )

    def _requeue(self) -> None:
        self._abandon()
        self._lease = self._run = self._stream = None
        self.timeline.dispatched_at = None
        self._preempting = False
        self._dispatcher.requeue(self)

    def _abandon(self) -> None:
        """Leaves queue and engine, whichever has it. Idempotent."""
        lease, run = self._lease, self._run
        if lease is None or run is None:
            self._dispatcher.withdraw(self)
        elif lease.held:
            self._dispatcher.cancelling(lease)
            run.cancel(self.request.id)

    # ---- notes from others (on the loop, never awaited)

    def granted(self, lease: Lease, run: Run, now: float) -> None:
        """The dispatcher got slots for it."""
        self._attempts += 1
        self._lease, self._run = lease, run
        self._stream = run.stream(self.request.id)
        self.replica = lease.replica
        self.timeline.dispatched_at = now
        self.poke()

    def poke(self) -> None:
        grant = self._grant
        if grant is not None:
            if not grant.done():
                grant.set_result(None)
        elif self._pulling and self._stream is not None:
            self._stream.poke()

    def fail(self, error: LLMRuntimeError) -> None:
        """Ends the request with this error at the next opportunity; the first error wins."""
        if self._error is None:
            self._error = error
            self.poke()

    def preempt(self) -> None:
        """Back to the queue, if nothing was sent yet: its slots are needed more elsewhere."""
        if not self._committed:
            self._preempting = True
            self.poke()

    def client_gone(self) -> None:
        self.fail(ClientGone("The client closed the connection."))

    # ---- time

    def _due(self) -> Iterator[tuple[float, str]]:
        """Instants at which something must happen, each with the name of what."""
        limits, request = self.request.limits, self.request
        arrived_at = request.arrived_at
        if limits.request_s is not None and (not request.stream or self.timeline.first_token_at is None):
            yield arrived_at + limits.request_s, "request time limit"
        if limits.total_s is not None:
            yield arrived_at + limits.total_s, "deadline"
        if self._pulling:
            if self._committed and request.stream and limits.idle_s is not None:
                yield self._touched_at + limits.idle_s, "stream idle limit"
            if self._keep_alive_s is not None:
                yield self._written_at + self._keep_alive_s, KEEP_ALIVE
        elif self._write_stall_s is not None:
            yield self._touched_at + self._write_stall_s, WRITE_STALL

    def _arm(self) -> None:
        """One timer for the nearest deadline. It is not moved when bytes flow: when it fires it
        looks at what is due then, so a token costs no timer call."""
        now = self._clock.now()
        nearest = min((at for at, _ in self._due()), default=now + MAX_TIMER_S)
        for interval_s in (self._keep_alive_s, self._write_stall_s, self.request.limits.idle_s):
            if interval_s is not None:
                nearest = min(nearest, now + interval_s)
        self._timer = asyncio.get_running_loop().call_later(max(nearest - now, 0.0), self._on_timer)

    def _on_timer(self) -> None:
        now = self._clock.now()
        due = sorted((at, what) for at, what in self._due() if at <= now)
        for _, what in due:
            if what == KEEP_ALIVE:
                self.keep_alive_due = True
                self._written_at = now
                self.poke()
            else:
                self._expire(what)
                return
        self._arm()

    def _expire(self, what: str) -> None:
        if what == WRITE_STALL:
            self.fail(ClientGone("The client does not read.", reason="slow_client"))
        elif self._lease is None:
            message = f"The {what} passed while the request was queued."
            self.fail(QueueTimeout(message, retry_after_s=1.0))
        else:
            self.fail(DeadlineExceeded(f"The {what} passed before the answer was complete."))
        if not self._pulling and self._task is not None:
            # Blocked in a send: only a cancellation gets the task out of it.
            self._task_cancelled = True
            self._task.cancel()


class StreamingHandle(RequestHandle):
    """A streamed request: `pull` until `Finished`."""


class CompletionHandle(RequestHandle):
    """A plain request: one body."""

    async def result(self) -> bytes:
        """The whole JSON body. Raises what ended the request."""
        body = b""
        while self.finished is None:
            item = await self.pull()
            if isinstance(item, Finished):
                break
            body += item
        stream = self._stream
        if stream is not None and stream.first_token_at is not None:
            self.timeline.first_token_at = stream.first_token_at
            self.timeline.last_token_at = self._touched_at
        return body
