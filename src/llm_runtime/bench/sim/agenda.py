"""Virtual time: what is due when, and who comes meanwhile. Knows nothing of queues or engines."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from llm_runtime.bench.sim.job import Ask

Handler = Callable[[Any, float], None]
"""Called with the subject it was noted with and the instant."""


class Agenda:
    """Owned by one simulation. Instants are seconds since the load's start; of equal ones, what was noted
    first comes first, and what was noted comes before a request that is due then."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Handler, Any]] = []
        self._serial = 0

    def at(self, at: float, handler: Handler, subject: Any) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (at, self._serial, handler, subject))

    def timer(self, at: float, handler: Handler) -> int:
        """As `at`, with its own number, which it returns, as the subject: for timers that a later one
        makes void."""
        self.at(at, handler, self._serial + 1)
        return self._serial

    def play(
        self, asks: Iterator[Ask], arrive: Callable[[Ask, float], None], *, delay_s: float, horizon_s: float
    ) -> float:
        """Until nothing is due any more, or the horizon; returns the last instant. asks: in the order of
        their instants, each arriving delay_s after it. What handlers note is played too."""
        heap, now = self._heap, 0.0
        ask = next(asks, None)
        while True:
            if ask is not None and (not heap or ask.at_s + delay_s < heap[0][0]):
                now = ask.at_s + delay_s
                if now > horizon_s:
                    return now
                arrive(ask, now)
                ask = next(asks, None)
            elif heap and heap[0][0] <= horizon_s:
                at, _, handler, subject = heapq.heappop(heap)
                now = max(now, at)
                handler(subject, now)
            else:
                return now
