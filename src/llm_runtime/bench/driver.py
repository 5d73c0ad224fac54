"""Puts a load on a server: closed loop, open loop or replay, and keeps a record of every request.

Instants are absolute, so lateness of one request never shifts the next. What stands between an
answer and the next request of a closed loop is kept to the sending itself: requests are built
beforehand, and records are made afterwards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from llm_runtime.bench import errors
from llm_runtime.bench.bodies import BodyWriter, Message
from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.clock import now
from llm_runtime.bench.config import ClosedLoop, Limits, Plan
from llm_runtime.bench.exchange import LoadExchange
from llm_runtime.bench.ledger import Ledger, Window, since, unsent
from llm_runtime.bench.pace import Gate, Sleeper
from llm_runtime.bench.records import RequestRecord
from llm_runtime.bench.supply import Ask, Supply
from llm_runtime.bench.timers import ExactTimers
from llm_runtime.bench.workload import SessionSource

PAUSE_WITHOUT_SERVER_S = 0.1
"""In a closed loop, after a request that no server answered: nothing else would slow the loop down."""

BUILT_AHEAD = 256
"""Requests of an open loop. What is built between two instants is built while somebody is due."""

LATE_TOGETHER = 32
"""Overdue requests started before answers are let in; one per turn of the loop would never catch up."""


_Due = tuple[float, Ask]
"""Seconds since the load's start, and what is due then."""


@dataclass(frozen=True, slots=True)
class _End:
    """What a client must know of a request that ended, at a monotonic instant. text: its answer."""

    at: float
    completed: bool
    answered: bool
    text: str = ""


def window_of(limits: Limits) -> Window:
    end_s = float("inf") if limits.duration_s is None else limits.duration_s - limits.cooldown_s
    return Window(limits.warmup_s, end_s)


class Driver:
    """Owned by one run, which awaits `run` once. `stop` may be called from the loop at any time."""

    def __init__(self, plan: Plan, client: LoadClient, bodies: BodyWriter, source: SessionSource) -> None:
        self.plan = plan
        self.ledger = Ledger(window_of(plan.limits), allow_estimates=plan.allow_estimates)
        load = plan.load
        self.gate = Gate(None if isinstance(load, ClosedLoop) else load.max_in_flight)
        self.timers = ExactTimers()
        """Open while `run` is."""
        self.origin = 0.0
        self.load_end_s: float | None = None
        """When the last request had become due; None while the load goes on."""
        self.num_abandoned_turns = 0
        """Follow-up requests that were never due, because the one before failed or the run ended."""
        self._client = client
        self._supply = Supply(plan, source, bodies)
        self._loop = asyncio.get_running_loop()
        self._sleeper = Sleeper(self.timers)
        self._exchanges: set[LoadExchange] = set()
        self._end_reason: str | None = None
        self._drain: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Until every request has its end. Failures of requests are records, never exceptions."""
        load = self.plan.load
        due = self._supply.due() if not isinstance(load, ClosedLoop) else iter(())
        if isinstance(load, ClosedLoop):
            self._supply.stock(load.concurrency)
        ahead = deque(islice(due, BUILT_AHEAD))
        self.origin = now()
        try:
            async with asyncio.TaskGroup() as group:
                if isinstance(load, ClosedLoop):
                    for number in range(load.concurrency):
                        begin_s = load.ramp_up_s * number / load.concurrency
                        group.create_task(self._closed_client(load, begin_s))
                else:
                    await self._open(group, ahead, due)
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

    async def _closed_client(self, load: ClosedLoop, begin_s: float) -> None:
        free_at = self.origin + begin_s
        await self._sleeper.until(free_at)
        while self._goes_on() and (ask := self._supply.take()) is not None:
            end = await self._play(ask, free_at)
            self._loop.call_soon(self._supply.stock, load.concurrency)
            free_at = end.at
            if not end.answered:
                free_at += PAUSE_WITHOUT_SERVER_S
                await self._sleeper.until(free_at)
        self._load_ends()

    async def _open(self, group: asyncio.TaskGroup, ahead: deque[_Due], due: Iterator[_Due]) -> None:
        """ahead: built already; due: the rest, each built after one was sent."""
        num_late = 0
        while ahead:
            due_s, ask = ahead.popleft()
            scheduled_at = self.origin + due_s
            if scheduled_at <= now():
                num_late += 1
                if num_late % LATE_TOGETHER == 0:
                    await asyncio.sleep(0)
            if not await self._sleeper.punctually(scheduled_at):
                break
            group.create_task(self._play(ask, scheduled_at))
            if not ahead or self.origin + ahead[0][0] > now():
                await asyncio.sleep(0)  # it is sent before anything else is done
            ahead.extend(islice(due, 1))
        self._load_ends()

    def _goes_on(self) -> bool:
        limit_s = self.plan.limits.duration_s
        return self._end_reason is None and (limit_s is None or now() - self.origin < limit_s)

    def _load_ends(self) -> None:
        if self.load_end_s is None:
            self.load_end_s = now() - self.origin
            drain_s = self.plan.limits.drain_timeout_s
            self._drain = self._loop.call_later(drain_s, self.stop, errors.DRAIN_TIMEOUT)

    async def _play(self, ask: Ask, scheduled_at: float) -> _End:
        """All requests of a session; returns the last one's end."""
        session = ask.session
        history: list[Message] = []
        while True:
            end = await self._request(ask, scheduled_at)
            num_left = len(session.turns) - ask.turn - 1
            if not num_left:
                return end
            scheduled_at = end.at + session.traffic.think_s
            if not end.completed or not await self._sleeper.until(scheduled_at) or not self._goes_on():
                self.num_abandoned_turns += num_left
                return end
            history += [{"role": "user", "content": ask.text}, {"role": "assistant", "content": end.text}]
            ask = self._supply.ask(session, ask.turn + 1, history)

    async def _request(self, ask: Ask, scheduled_at: float) -> _End:
        """One request from due to end; its record follows soon after."""
        released_at = now()
        number = self.ledger.issue()
        if not await self.gate.enter():
            at = now()
            blank = self._blank(ask, number, scheduled_at, released_at)
            reason = self._end_reason or errors.INTERRUPTED
            self.ledger.close(unsent(blank, reason, since(self.origin, at)))
            return _End(at, completed=False, answered=False)
        target, started_at = self.plan.target, now()
        exchange = self._client.send(
            self._supply.path, ask.body, ask.headers,
            wants_stream=target.stream, keep_text=len(ask.session.turns) > 1,
        )  # fmt: skip
        timers = [self._loop.call_at(started_at + target.timeout_s, exchange.give_up, errors.TIMEOUT)]
        patience_s = ask.session.traffic.patience_s
        if patience_s is not None and target.stream:
            timers.append(self._loop.call_at(scheduled_at + patience_s, exchange.lose_patience))
        self._exchanges.add(exchange)
        try:
            await exchange.wait()
        finally:
            for timer in timers:
                timer.cancel()
            exchange.give_up(errors.INTERRUPTED)
            self._exchanges.discard(exchange)
            self.gate.leave()

        def enter() -> None:
            blank = self._blank(ask, number, scheduled_at, released_at)
            self._enter(self.ledger.filled(blank, started_at, exchange, self.origin))

        self._loop.call_soon(enter)
        text = exchange.answer.text if exchange.answer is not None else None
        return _End(
            now() if exchange.finished_at is None else exchange.finished_at,
            completed=exchange.problem is None,
            answered=exchange.status != 0,
            text="".join(text or ()),
        )

    def _enter(self, record: RequestRecord) -> None:
        self.ledger.close(record)
        if self.ledger.num_without_usage and not self.plan.allow_estimates:
            self.stop()

    def _blank(self, ask: Ask, number: int, scheduled_at: float, released_at: float) -> RequestRecord:
        session, asked = ask.session, ask.session.turns[ask.turn]
        shared = session.traffic.prefix.tokens if asked.prefix is not None else 0
        scheduled_s = since(self.origin, scheduled_at)
        return RequestRecord(
            number=number,
            session=session.number,
            turn=ask.turn,
            traffic=session.traffic.name,
            scheduled_at=scheduled_s,
            released_at=since(self.origin, released_at),
            measured=scheduled_s in self.ledger.window,
            stream=self.plan.target.stream,
            priority=session.traffic.priority,
            tenant=session.traffic.tenant,
            max_tokens=asked.output_tokens,
            intended_tokens=shared + asked.input_tokens if ask.turn == 0 else None,
        )
