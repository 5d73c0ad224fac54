"""A closed loop against one static-batching engine, in virtual time, driving the real scheduler."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from llm_runtime.scheduling.base import Scheduler
from tests.scheduling.pools import FakePool, FakeReplica, make_request

PREFILL_S = 0.025
STEP_S = 0.010
NUM_TOKENS = 4
SERVICE_S = PREFILL_S + NUM_TOKENS * STEP_S


@dataclass(frozen=True)
class Load:
    """concurrency(now): how many clients are at work; think_s(random): between answer and next request."""

    concurrency: Callable[[float], int]
    think_s: Callable[[random.Random], float]


class ClosedLoop:
    """Clients that send, wait for the whole answer, and send again. `completed_at` holds the ends."""

    def __init__(self, scheduler: Scheduler, load: Load, *, num_slots: int = 8, seed: int = 0) -> None:
        self._pool = FakePool(scheduler, FakeReplica(num_slots, static=True))
        self._load = load
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._ids = count()
        self._wake: tuple[float, int] | None = None
        self._num_clients = 0
        self.now = 0.0
        self.completed_at: list[float] = []
        self.batch_sizes: list[int] = []

    def run(self, until_s: float) -> None:
        self._fill()
        while self._events and self._events[0][0] <= until_s:
            self.now, _, action = heapq.heappop(self._events)
            action()

    def rate(self, after_s: float = 0.0) -> float:
        """Completed requests per second from `after_s` to the last completion."""
        done = [at for at in self.completed_at if at > after_s]
        return len(done) / (done[-1] - after_s)

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), action))

    def _fill(self) -> None:
        while self._num_clients < self._load.concurrency(self.now):
            self._num_clients += 1
            self._at(self.now, self._send)

    def _send(self) -> None:
        self._pool.add(make_request(str(next(self._ids)), max_tokens=NUM_TOKENS), self.now)
        self._decide()

    def _decide(self) -> None:
        decision = self._pool.decide(self.now)
        if decision.dispatch:
            ids = [placement.request_id for placement in decision.dispatch]
            self.batch_sizes.append(len(ids))
            self._at(self.now + SERVICE_S, lambda: self._end(ids))
        self._wake = None
        if decision.wake_at is not None:
            token = self._wake = (decision.wake_at, next(self._order))
            self._at(decision.wake_at, lambda: self._decide() if self._wake is token else None)

    def _end(self, ids: list[str]) -> None:
        for request_id in ids:
            self._pool.finish(request_id, self.now)
            self.completed_at.append(self.now)
            if self._num_clients > self._load.concurrency(self.now):
                self._num_clients -= 1
            else:
                self._at(self.now + self._load.think_s(self._random), self._send)
        self._fill()
        self._decide()
