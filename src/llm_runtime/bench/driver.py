"""Puts a load on a server: closed loop, open loop or replay, and keeps a record of every request.

Instants are absolute, so lateness of one request never shifts the next. In an open loop a request
is built before it is due, so that building is not lateness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from llm_runtime.bench import arrivals, errors
from llm_runtime.bench.bodies import BodyWriter, Message
from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.clock import now
from llm_runtime.bench.config import ClosedLoop, Limits, OpenLoop, Plan, Replay
from llm_runtime.bench.exchange import LoadExchange
from llm_runtime.bench.ledger import Ledger, Window, since, unsent
from llm_runtime.bench.pace import Gate, Sleeper
from llm_runtime.bench.records import RequestRecord, Status
from llm_runtime.bench.timers import ExactTimers
from llm_runtime.bench.workload import Session, SessionSource

PAUSE_WITHOUT_SERVER_S = 0.1
"""In a closed loop, after a request that no server answered: nothing else would slow the loop down."""

LATE_TOGETHER = 32
"""Overdue requests started before answers are let in; one per turn of the loop would never catch up."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """A request ready to be sent."""

    session: Session
    turn: int
    body: bytes
    headers: Mapping[str, str]
    text: str


def window_of(limits: Limits) -> Window:
    end_s = float("inf") if limits.duration_s is None else limits.duration_s - limits.cooldown_s
    return Window(limits.warmup_s, end_s)


class Driver:
    """Owned by one run, which awaits `run` once. `stop` may be called from the loop at any time."""

    def __init__(self, plan: Plan, client: LoadClient, bodies: BodyWriter, source: SessionSource) -> None:
        self.plan = plan
        self._client = client
        self._bodies = bodies
        self._source = source
        load = plan.load
        self.ledger = Ledger(window_of(plan.limits), allow_estimates=plan.allow_estimates)
        self.gate = Gate(None if isinstance(load, ClosedLoop) else load.max_in_flight)
        self.origin = 0.0
        self.load_end_s: float | None = None
        """When the last request had become due; None while the load goes on."""
        self.num_abandoned_turns = 0
        """Follow-up requests that were never due, because the one before failed or the run ended."""
        self._loop = asyncio.get_running_loop()
        self.timers = ExactTimers()
        """Open while `run` is."""
        self._sleeper = Sleeper(self.timers)
        self._exchanges: set[LoadExchange] = set()
        self._numbers = count()
        self._num_planned = 0
        self._end_reason: str | None = None
        self._drain: asyncio.TimerHandle | None = None

    @property
    def stopped(self) -> bool:
        return self._end_reason is not None

    async def run(self) -> None:
        """Until every request has its end. Failures of requests are records, never exceptions."""
        self.origin = now()
        load = self.plan.load
        try:
            async with asyncio.TaskGroup() as group:
                if isinstance(load, ClosedLoop):
                    for number in range(load.concurrency):
                        begin_s = load.ramp_up_s * number / load.concurrency
                        group.create_task(self._closed_client(begin_s))
                else:
                    await self._open(group, load)
        finally:
            self.timers.close()
            if self._drain is not None:
                self._drain.cancel()

    def stop(self, reason: str = errors.INTERRUPTED) -> None:
        """Ends the load and gives up what is in flight; `reason` is what their records say."""
        if self._end_reason is None:
            self._end_reason = reason
            self._load_ends()
        self._sleeper.wake_all()
        self.gate.close()
        for exchange in tuple(self._exchanges):
            exchange.give_up(reason)

    # closed loop

    async def _closed_client(self, begin_s: float) -> None:
        free_at = self.origin + begin_s
        await self._sleeper.until(free_at)
        while (session := self._next_session()) is not None:
            last = await self._play(session, free_at)
            free_at = now() if last is None or last.finished_at is None else self.origin + last.finished_at
            if last is not None and last.http_status is None and last.status is Status.FAILED:
                free_at += PAUSE_WITHOUT_SERVER_S
                await self._sleeper.until(free_at)

    def _next_session(self) -> Session | None:
        """The next session within the limits, cut to what is left of them."""
        limits = self.plan.limits
        session = None
        if not self.stopped and not self._past(limits.duration_s):
            session = self._within_count(next(self._numbers))
        if session is None:
            self._load_ends()
        return session

    # open loop

    async def _open(self, group: asyncio.TaskGroup, load: OpenLoop | Replay) -> None:
        num_late = 0
        for session in self._due_sessions(load):
            assert session.due_s is not None
            scheduled_at = self.origin + session.due_s
            ask = self._ask(session, 0, [])
            if scheduled_at <= now():
                num_late += 1
                if num_late % LATE_TOGETHER == 0:
                    await asyncio.sleep(0)
            if not await self._sleeper.until(scheduled_at):
                break
            group.create_task(self._play(session, scheduled_at, ask))
        self._load_ends()

    def _due_sessions(self, load: OpenLoop | Replay) -> Iterator[Session]:
        instants = arrivals.offsets(load, self.plan.seed) if isinstance(load, OpenLoop) else None
        limit_s = self.plan.limits.duration_s
        for number in count():
            session = self._within_count(number)
            if session is None:
                return
            if instants is not None:
                session = replace(session, due_s=next(instants))
            if limit_s is not None and session.due_s is not None and session.due_s >= limit_s:
                return
            yield session

    # both

    def _within_count(self, number: int) -> Session | None:
        session, limit = self._source.session(number), self.plan.limits.requests
        if session is None or limit is None:
            return session
        left = limit - self._num_planned
        self._num_planned += min(left, len(session.turns))
        return replace(session, turns=session.turns[:left]) if left > 0 else None

    def _past(self, limit_s: float | None) -> bool:
        return limit_s is not None and now() - self.origin >= limit_s

    def _load_ends(self) -> None:
        if self.load_end_s is None:
            self.load_end_s = now() - self.origin
            drain_s = self.plan.limits.drain_timeout_s
            self._drain = self._loop.call_later(drain_s, self.stop, errors.DRAIN_TIMEOUT)

    async def _play(
        self, session: Session, scheduled_at: float, ask: _Ask | None = None
    ) -> RequestRecord | None:
        """All requests of a session; returns the last one's record."""
        history: list[Message] = []
        record = None
        for turn in range(len(session.turns)):
            if turn > 0:
                scheduled_at += session.traffic.think_s
                goes_on = await self._sleeper.until(scheduled_at)
                if not goes_on or self._past(self.plan.limits.duration_s):
                    self.num_abandoned_turns += len(session.turns) - turn
                    break
            ask = self._ask(session, turn, history) if ask is None else ask
            record, said = await self._request(ask, scheduled_at)
            if record.status is not Status.COMPLETED or record.finished_at is None:
                self.num_abandoned_turns += len(session.turns) - turn - 1
                break
            history += [{"role": "user", "content": ask.text}, {"role": "assistant", "content": said}]
            scheduled_at = self.origin + record.finished_at
            ask = None
        return record

    def _ask(self, session: Session, turn: int, history: list[Message]) -> _Ask:
        text = self._bodies.user_text(session, turn)
        messages: list[Message] = [*history, {"role": "user", "content": text}]
        body = self._bodies.body(session, turn, messages)
        return _Ask(session, turn, body, self._bodies.headers(session), text)

    async def _request(self, ask: _Ask, scheduled_at: float) -> tuple[RequestRecord, str]:
        """One request from due to end, entered in the ledger; also what was answered."""
        ledger, origin = self.ledger, self.origin
        blank = self._blank(ask, since(origin, scheduled_at), since(origin, now()))
        if not await self.gate.enter():
            record = unsent(blank, self._end_reason or errors.INTERRUPTED, since(origin, now()))
            ledger.close(record)
            return record, ""
        started_at = now()
        exchange = self._client.send(
            self._bodies.path, ask.body, ask.headers,
            wants_stream=self.plan.target.stream, keep_text=len(ask.session.turns) > 1,
        )  # fmt: skip
        timer = self._loop.call_at(started_at + self.plan.target.timeout_s, exchange.give_up, errors.TIMEOUT)
        self._exchanges.add(exchange)
        try:
            await exchange.wait()
        finally:
            timer.cancel()
            exchange.give_up(errors.INTERRUPTED)
            self._exchanges.discard(exchange)
            self.gate.leave()
        record = ledger.filled(blank, started_at, exchange, origin)
        ledger.close(record)
        if ledger.num_without_usage and not self.plan.allow_estimates:
            self.stop()
        text = exchange.answer.text if exchange.answer is not None else None
        return record, "".join(text or ())

    def _blank(self, ask: _Ask, scheduled_s: float, released_s: float) -> RequestRecord:
        session, asked = ask.session, ask.session.turns[ask.turn]
        shared = session.traffic.prefix.tokens if asked.prefix is not None else 0
        number, measured = self.ledger.issue(scheduled_s)
        return RequestRecord(
            number=number,
            session=session.number,
            turn=ask.turn,
            traffic=session.traffic.name,
            scheduled_at=scheduled_s,
            released_at=released_s,
            measured=measured,
            stream=self.plan.target.stream,
            priority=session.traffic.priority,
            tenant=session.traffic.tenant,
            max_tokens=asked.output_tokens,
            intended_tokens=shared + asked.input_tokens if ask.turn == 0 else None,
        )
