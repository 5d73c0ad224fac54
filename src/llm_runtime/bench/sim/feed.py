"""What clients ask, in virtual time: arrivals that come by themselves, and those that follow an end.

`PlanFeed` asks what `bench.driver` would send for the same plan and seed: same arrivals, same classes,
same lengths. So a plan can be simulated and then run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Protocol

from llm_runtime.bench import arrivals
from llm_runtime.bench.config import ClosedLoop, OpenLoop, Plan
from llm_runtime.bench.ledger import Window
from llm_runtime.bench.sim.job import UNLIMITED, Ask, Job
from llm_runtime.bench.workload import Session, SessionSource, SyntheticSessions
from llm_runtime.core.request import DEFAULT_PRIORITY

SESSION_BLOCKS = 1 << 24
PREFIX_BLOCKS = 1 << 60
PAUSE_AFTER_FAILURE_S = 0.001
"""Of a closed loop: nothing is refused in no time, and virtual time must go on."""


class Feed(Protocol):
    def arrivals(self) -> Iterator[Ask]:
        """Those that wait for nothing, in the order of their instants. Asked once."""
        ...

    def ended(self, job: Job, now: float) -> Ask | None:
        """What follows the end of a request (completed, failed or refused), due now or later."""
        ...


class OpenFeed:
    """Requests that are known beforehand. Implements `Feed`. Raises ValueError when one is out of order."""

    def __init__(self, asks: Iterable[Ask]) -> None:
        self._asks = asks

    def arrivals(self) -> Iterator[Ask]:
        last_s = float("-inf")
        for ask in self._asks:
            if ask.at_s < last_s:
                raise ValueError(f"request {ask.number} is due before the one ahead of it")
            last_s = ask.at_s
            yield ask

    def ended(self, job: Job, now: float) -> None:
        """Nobody follows."""


class PlanFeed:
    """The load of a plan. Implements `Feed`. Used once.

    source: of the plan's sessions; by default its synthetic traffic. block_tokens: granularity of the
    blocks made for shared prefixes and histories of several turns; 0 makes none.
    """

    def __init__(self, plan: Plan, source: SessionSource | None = None, *, block_tokens: int = 0) -> None:
        self._plan = plan
        self._source = source or SyntheticSessions(plan.traffic, plan.seed)
        self._block_tokens = block_tokens
        self._sessions: dict[int, tuple[Session, int]] = {}  # under way, with the tokens of their history
        self._sessions_begun = count()
        self._numbers = count()
        self._num_planned = 0
        limits = plan.limits
        end_s = float("inf") if limits.duration_s is None else limits.duration_s - limits.cooldown_s
        self._window = Window(limits.warmup_s, end_s)

    def arrivals(self) -> Iterator[Ask]:
        load = self._plan.load
        if isinstance(load, ClosedLoop):
            for number in range(load.concurrency):
                ask = self._next_session(load.ramp_up_s * number / load.concurrency)
                if ask is not None:
                    yield ask
            return
        instants = arrivals.offsets(load, self._plan.seed) if isinstance(load, OpenLoop) else None
        while (session := self._next()) is not None:
            due_s = next(instants) if instants is not None else session.due_s
            assert due_s is not None
            if self._past(due_s):
                return
            yield self._ask(session, 0, due_s)

    def ended(self, job: Job, now: float) -> Ask | None:
        session, _ = self._sessions[job.ask.session]
        next_turn = job.ask.turn + 1
        if job.error is None and next_turn < len(session.turns):
            due_s = now + session.traffic.think_s
            if not self._past(due_s):
                return self._ask(session, next_turn, due_s)
        del self._sessions[session.number]
        if not isinstance(self._plan.load, ClosedLoop):
            return None
        return self._next_session(now if job.error is None else now + PAUSE_AFTER_FAILURE_S)

    def _next_session(self, at_s: float) -> Ask | None:
        if self._past(at_s):
            return None
        session = self._next()
        return None if session is None else self._ask(session, 0, at_s)

    def _next(self) -> Session | None:
        """The next session, cut to what is left of the limit."""
        session, limit = self._source.session(next(self._sessions_begun)), self._plan.limits.requests
        if session is None or limit is None:
            return session
        left = limit - self._num_planned
        self._num_planned += min(left, len(session.turns))
        if left <= 0:
            return None
        return session if left >= len(session.turns) else replace(session, turns=session.turns[:left])

    def _past(self, at_s: float) -> bool:
        limit_s = self._plan.limits.duration_s
        return limit_s is not None and at_s >= limit_s

    def _ask(self, session: Session, turn: int, at_s: float) -> Ask:
        traffic, asked = session.traffic, session.turns[turn]
        history = self._sessions[session.number][1] if turn else 0
        shared = traffic.prefix.tokens if asked.prefix is not None else 0
        prompt_tokens = history + shared + asked.input_tokens
        self._sessions[session.number] = (session, prompt_tokens + asked.output_tokens)
        block_ids, block_tokens = asked.block_ids, asked.block_tokens
        if not block_ids and self._block_tokens and (traffic.prefix.tokens or len(session.turns) > 1):
            block_tokens = self._block_tokens
            block_ids = self._blocks(session, prompt_tokens)
        return Ask(
            number=next(self._numbers),
            at_s=at_s,
            prompt_tokens=prompt_tokens,
            output_tokens=asked.output_tokens,
            max_tokens=asked.output_tokens,
            traffic=traffic.name,
            tenant=traffic.tenant or "anonymous",
            priority=DEFAULT_PRIORITY if traffic.priority is None else traffic.priority,
            session=session.number,
            turn=turn,
            block_ids=block_ids,
            block_tokens=block_tokens,
            limits=UNLIMITED,
            measured=at_s in self._window,
        )

    def _blocks(self, session: Session, prompt_tokens: int) -> tuple[int, ...]:
        """Whole blocks only: first those of the shared prefix, then the session's own."""
        prefix = session.turns[0].prefix
        num_blocks = prompt_tokens // self._block_tokens
        num_shared = 0
        if prefix is not None:
            num_shared = min(session.traffic.prefix.tokens // self._block_tokens, num_blocks)
        start = PREFIX_BLOCKS + (prefix or 0) * SESSION_BLOCKS
        own = session.number * SESSION_BLOCKS
        return (*range(start, start + num_shared), *range(own, own + num_blocks - num_shared))
