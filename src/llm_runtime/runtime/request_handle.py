"""`RequestHandle`: what the request's own task holds of its request, from the queue to the last byte.

`with runtime.submit(request, permit) as handle` owns the request. Leaving the block, in whatever
way, settles the outcome exactly once and asks the engine to stop if it is still working. Only the task
that entered may pull; everybody else leaves a note (`fail`, `preempt`, the timer) and wakes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import ClientGone, LLMRuntimeError, forget_frames
from llm_runtime.core.lease import Lease
from llm_runtime.core.outcome import Outcome, RequestRecord, Usage
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.core.sink import Sink
from llm_runtime.core.timeline import Timeline
from llm_runtime.engines.base import EngineStream, Finished, Run, TokenSink
from llm_runtime.runtime.endings import ending, overdue
from llm_runtime.runtime.failover import Attempts
from llm_runtime.runtime.pace import Due, Pace
from llm_runtime.runtime.reminders import Reminders

if TYPE_CHECKING:
    from llm_runtime.runtime.dispatcher import Dispatcher


class RequestHandle(TokenSink):
    """One request's life. `settle` is told of its end, once.

    keep_alive_due: the caller should send a comment; it resets this. cut_off: the task was taken out of
    a send that did not end, so the connection is of no use any more. owner: the task that will enter, where
    the caller knows it: asking costs.
    """

    def __init__(
        self,
        request: RuntimeRequest,
        dispatcher: Dispatcher,
        *,
        clock: Clock,
        settle: Callable[[RequestRecord], None],
        reminders: Reminders,
        keep_alive_s: float | None = None,
        write_stall_s: float | None = None,
    ) -> None:
        # First what every token looks at: compiled, these lie side by side in memory, in this order.
        self._sink: Sink | None = None
        self.timeline = timeline = Timeline(request.arrived_at)
        self._pace = Pace(request, timeline, keep_alive_s=keep_alive_s, write_stall_s=write_stall_s)
        self.request = request
        self.keep_alive_due = False
        self.cut_off = False
        self.owner: asyncio.Task[None] | None = None
        self.replica: str | None = None
        self.lease: Lease | None = None
        self.attempts = Attempts()
        self._dispatcher = dispatcher
        self._now = clock.now
        self._settle = settle
        self._reminders = reminders
        self._run: Run | None = None
        self._stream: EngineStream | None = None
        self._push_to: Callable[[TokenSink | None], None] | None = None
        self._grant: asyncio.Future[None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._error: LLMRuntimeError | None = None
        self._preempted = False

    # ---- owning

    def __enter__(self) -> Self:
        self._task = self.owner if self.owner is not None else asyncio.current_task()
        self._pace.engine_at = self._pace.client_at = now = self._now()
        try:
            self._dispatcher.enqueue(self)
        except BaseException as error:
            self._end(error)
            raise
        self._reminders.set(self, self._pace.first_look_at - now)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Never suspends, so nothing can come between the last write and the books."""
        swallow = isinstance(error, ClientGone)
        if self.cut_off:
            assert self._task is not None
            others_cancel_too = self._task.uncancel() > 0
            if isinstance(error, asyncio.CancelledError) and not others_cancel_too:
                error, swallow = self._error, True
        self._end(error)
        if swallow and error is not None:
            forget_frames(error)
        return swallow

    def _end(self, error: BaseException | None) -> None:
        self._task = None
        self._reminders.cancel(self)
        if self._push_to is not None:
            self._push_to(None)  # it refers back to this object
        self._abandon()
        self.timeline.finished_at = self._now()
        outcome, reason = self._outcome(error)
        self._judge(outcome)
        self._error = None  # its traceback refers back to this object
        counts = self.timeline.itl_counts
        self._settle(
            RequestRecord(
                request=self.request,
                outcome=outcome,
                reason=reason,
                usage=self.usage or Usage(estimated=True),
                timeline=self.timeline,
                replica=self.replica,
                itl_counts=tuple(counts) if counts is not None else None,
                itl_sum_s=self.timeline.itl_sum_s,
            )
        )

    def _outcome(self, error: BaseException | None) -> tuple[Outcome, str]:
        finished = self.finished
        if error is None:
            # Who left before the last write has no complete answer, although the engine gave one.
            if finished is not None and not isinstance(self._error, ClientGone):
                return Outcome.FAILED if finished.failed else Outcome.COMPLETED, finished.reason
            error = self._error or ClientGone("The request was left before its end.")
        return ending(error)

    def _judge(self, outcome: Outcome) -> None:
        """What the end says of the engine, unless its own failure has said it."""
        if self.lease is not None and not self.attempts.judged:
            error = None
            if outcome is not Outcome.COMPLETED and self.finished is None:
                error = self._error or ClientGone("It was left.")
            self._dispatcher.failover.ended(self.request, self.lease, self.attempts, error)

    @property
    def usage(self) -> Usage | None:
        return self._stream.spent() if self._stream is not None else None

    @property
    def finished(self) -> Finished | None:
        """Known with the last bytes, so that they can be the last write."""
        return self._stream.finished if self._stream is not None else None

    # ---- pulling (the request's own task)

    async def pull(self, sink: Sink | None = None) -> bytes | Finished:
        """The next bytes for the client, `Finished` at the end, or b"" when only woken.

        sink: may get bytes while this waits, without a wake-up of this task (`base.PushingStream`); what
        is returned comes after them. Raises what ended the request, an LLMRuntimeError, after telling
        the engine to stop.
        """
        if self._error is not None or self._preempted:
            self._attend()
        pace = self._pace
        pace.pulling = True
        try:
            stream = self._stream
            if stream is None:
                stream = await self._granted_stream()
                if stream is None:
                    return b""
            if self._push_to is not None:
                self._sink = sink
                self._push_to(None if sink is None else self)
            item = await stream.__anext__()
        except LLMRuntimeError as error:
            pace.client_at = self._now()  # what is sent now is the news of this
            if not self._may_retry(error):
                raise
            self._requeue()
            return b""
        finally:
            pace.pulling = False
        if self._error is not None:
            self._raise()
        if item and item.__class__ is bytes:
            self._note(self._now(), stream.has_token)
        return item

    def push_token(self, data: bytes, chunk: bytes | None, now: float, has_token: bool) -> bool:
        """Bytes that do not wait for the task: from the engine's callback to the client."""
        sink = self._sink
        assert sink is not None
        self._note(now, has_token)
        return sink.push(data, chunk)

    def _note(self, now: float, has_token: bool) -> None:
        """What every item means, on whichever way it goes on."""
        pace = self._pace
        pace.engine_at = pace.client_at = now
        if not pace.begun:
            self._begin()
        if has_token:
            if self.timeline.first_token_at is None:
                self._dispatcher.first_token(self.request.id)
            self.timeline.token(now)

    def _begin(self) -> None:
        """The commit point: from here on nothing can be tried again."""
        self._pace.begun = self._pace.written = True
        if self.lease is not None:
            self.lease.run()
            self._dispatcher.failover.answering(self.lease)

    def _attend(self) -> None:
        """Does what others have noted while the task was busy."""
        if self._error is not None:
            self._raise()
        self._preempted = False
        if not self._pace.begun and self._run is not None:
            self.attempts.taken_back()
            self._requeue()

    def _raise(self) -> NoReturn:
        assert self._error is not None
        self._pace.client_at = self._now()
        self._abandon()
        raise self._error

    async def _granted_stream(self) -> EngineStream | None:
        self._grant = asyncio.get_running_loop().create_future()
        try:
            await self._grant
        finally:
            self._grant = None
        if self._error is not None:
            self._raise()
        return self._stream

    def _may_retry(self, error: LLMRuntimeError) -> bool:
        if self._error is not None or self.lease is None:
            return False
        begun, failover = self._pace.begun, self._dispatcher.failover
        return failover.failed(self.request, self.lease, error, self.attempts, begun=begun)

    def _requeue(self) -> None:
        lease = self.lease
        assert lease is not None
        self._abandon()
        self.lease = self._run = self._stream = self._push_to = None
        self.timeline.dispatched_at = None
        self._dispatcher.requeue(self, lease)

    def _abandon(self) -> None:
        """Leaves queue and engine, whichever has it. Idempotent."""
        lease, run = self.lease, self._run
        if lease is None or run is None:
            self._dispatcher.withdraw(self)
        elif lease.held:
            self._dispatcher.cancelling(lease)
            run.cancel(self.request.id)

    def note_plain_tokens(self) -> None:
        """The times of a plain reply's tokens are the engine's to tell: the body came as one."""
        stream = self._stream
        if stream is not None and stream.first_token_at is not None:
            self.timeline.first_token_at = stream.first_token_at
            self.timeline.last_token_at = self._pace.engine_at

    # ---- notes from others (on the loop, never awaited)

    def granted(self, lease: Lease, run: Run, now: float) -> None:
        """The dispatcher got slots for it."""
        self._dispatcher.failover.granted(self.attempts)
        self.lease, self._run = lease, run
        self._stream = run.stream(self.request.id)
        self._push_to = getattr(self._stream, "push_to", None)
        self.replica = lease.replica
        self.timeline.dispatched_at = now
        self._wake()

    def fail(self, error: LLMRuntimeError) -> None:
        """Ends the request with this error at the next opportunity; the first error wins. What still
        waits leaves the queue at once, so that no engine works for nobody. Harmless after the end."""
        if self._error is not None or self._task is None:
            return
        self._error = error
        self._pace.ending = True
        if self.lease is None:
            self._dispatcher.withdraw(self)
        self._wake()

    def cut(self) -> None:
        """Takes the task out of a send that does not end; after `fail` only."""
        if self._task is not None and not self._pace.pulling and not self.cut_off:
            self.cut_off = True
            self._task.cancel()

    def preempt(self, error: LLMRuntimeError | None = None) -> None:
        """Back to the queue, if nothing was sent yet: its slots are needed more elsewhere. Else it ends
        with the error; without one it goes on."""
        if not self._pace.begun:
            self._preempted = True
            self._wake()
        elif error is not None:
            self.fail(error)

    def client_gone(self) -> None:
        self.fail(ClientGone("The client closed the connection."))

    def _wake(self) -> None:
        grant = self._grant
        if grant is not None:
            if not grant.done():
                grant.set_result(None)
        elif self._pace.pulling and self._stream is not None:
            self._stream.poke()

    # ---- time

    def on_reminder(self) -> None:
        """One of its limits may be due."""
        now = self._now()
        for what in self._pace.passed(now):
            if what is Due.KEEP_ALIVE:
                self._pace.client_at = now
                self._pace.written = self.keep_alive_due = True
                self._wake()
            else:
                if self._error is None:
                    # The wait that it is told is of the queue without it, so it leaves first.
                    return_s = None if self.lease is not None else self._dispatcher.give_up(self)
                    self.fail(overdue(what, return_s))
                if what is Due.WRITE_STALL:
                    self.cut()
        if not self.cut_off:
            self._reminders.set(self, self._pace.look_in_s(now))
