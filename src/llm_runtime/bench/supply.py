"""The requests of a load in their order, within its limits, built before anybody waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from llm_runtime.bench import arrivals
from llm_runtime.bench.bodies import BodyWriter, Message
from llm_runtime.bench.config import OpenLoop, Plan, Replay
from llm_runtime.bench.workload import Session, SessionSource


@dataclass(frozen=True, slots=True)
class Ask:
    """A request ready to be sent."""

    session: Session
    turn: int
    body: bytes
    headers: Mapping[str, str]
    text: str


class Supply:
    """Owned by one driver. Hands out the first request of each session; follow-ups are built when due."""

    def __init__(self, plan: Plan, source: SessionSource, bodies: BodyWriter) -> None:
        self._plan = plan
        self._source = source
        self._bodies = bodies
        self._numbers = count()
        self._num_planned = 0
        self._ready: deque[Ask] = deque()
        self._exhausted = False

    @property
    def path(self) -> str:
        return self._bodies.path

    def take(self) -> Ask | None:
        """The next session's first request, from stock if there is any; None after the last."""
        if not self._ready:
            self.stock(1)
        return self._ready.popleft() if self._ready else None

    def stock(self, number: int) -> None:
        """Builds ahead until so many are ready."""
        while len(self._ready) < number and not self._exhausted:
            session = self._next()
            if session is None:
                self._exhausted = True
            else:
                self._ready.append(self.ask(session, 0, []))

    def due(self) -> Iterator[tuple[float, Ask]]:
        """(seconds since the load's start, request), each built when it is asked for."""
        load, limit_s = self._plan.load, self._plan.limits.duration_s
        assert isinstance(load, OpenLoop | Replay)
        instants = arrivals.offsets(load, self._plan.seed) if isinstance(load, OpenLoop) else None
        while (session := self._next()) is not None:
            due_s = next(instants) if instants is not None else session.due_s
            assert due_s is not None
            if limit_s is not None and due_s >= limit_s:
                return
            yield due_s, self.ask(session, 0, [])

    def ask(self, session: Session, turn: int, history: list[Message]) -> Ask:
        text = self._bodies.user_text(session, turn)
        body = self._bodies.body(session, turn, [*history, {"role": "user", "content": text}])
        return Ask(session, turn, body, self._bodies.headers(session), text)

    def _next(self) -> Session | None:
        """The next session, cut to what the limit of requests leaves of it."""
        session, limit = self._source.session(next(self._numbers)), self._plan.limits.requests
        if session is None or limit is None:
            return session
        left = limit - self._num_planned
        self._num_planned += min(left, len(session.turns))
        return replace(session, turns=session.turns[:left]) if left > 0 else None
