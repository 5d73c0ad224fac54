"""When a replica that keeps failing is left alone, and how it is tried again. Pure; time is an argument.

    closed --failures in a row--> open --its time is over--> half open --an answer--> closed
                                   ^                             |
                                   +-------- a failure ----------+

What counts as a failure is not decided here but in `verdict`. Ends that say nothing of the replica (a
client's mistake, a client that left) are not told to the breaker: they neither add to a run of failures
nor break it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

MAX_DOUBLINGS = 16


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """failures: in a row that open it. open_s: how long it stays so at first; doubles with each opening
    that follows without an answer between, up to open_max_s."""

    failures: int = 5
    open_s: float = 2.0
    open_max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """One replica's; a value. failures, openings: in a row. open_until: monotonic, where open."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    openings: int = 0
    open_until: float = 0.0

    def failed(self, now: float, rules: BreakerRules) -> Breaker:
        """A request failed by the replica's doing. While open nothing is learnt from those that were
        already running."""
        if self.state is BreakerState.OPEN:
            return self
        failures = self.failures + 1
        if self.state is BreakerState.CLOSED and failures < rules.failures:
            return replace(self, failures=failures)
        open_s = min(rules.open_s * 2.0 ** min(self.openings, MAX_DOUBLINGS), rules.open_max_s)
        return Breaker(BreakerState.OPEN, failures, self.openings + 1, now + open_s)

    def answered(self) -> Breaker:
        """A request was answered in full, or, after a pause, at all."""
        return self if self.state is BreakerState.OPEN else CLOSED

    def at(self, now: float) -> Breaker:
        """The breaker as it is at `now`: an open one becomes half open by time alone."""
        if self.state is BreakerState.OPEN and now >= self.open_until:
            return replace(self, state=BreakerState.HALF_OPEN)
        return self


CLOSED = Breaker()
