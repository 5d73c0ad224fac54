"""A token bucket as pure arithmetic: time is an argument, nothing sleeps, nothing is locked."""

from __future__ import annotations

import math

ON_TIME_S = 1e-9


class TokenBucket:
    """Holds at most `burst` tokens, gains `rate_per_s` of them each second, starts full.

    In any span of T seconds at most `burst + rate_per_s * T` tokens are taken. Instants are
    monotonic; one that lies before the latest seen counts as that one, so a clock that steps back
    neither grants nor locks. Edges: a rate that is not a positive finite number, or a burst below 1,
    is a ValueError (there is no "0 means off"); a cost above the burst can never be taken and is told
    so by an infinite wait. Owned by one policy, used on the loop's thread only.
    """

    __slots__ = ("_rounding_s", "_tokens", "_updated_at", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float) -> None:
        if not 0 < rate_per_s < math.inf:
            raise ValueError(f"rate_per_s must be a positive number, not {rate_per_s!r}")
        if not 1 <= burst < math.inf:
            raise ValueError(f"burst must be at least 1, not {burst!r}")
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._tokens = float(burst)
        self._updated_at = -math.inf
        self._rounding_s = max(ON_TIME_S, 4 * math.ulp(burst) / rate_per_s)

    def try_take(self, cost: float, now: float) -> float:
        """Takes `cost` tokens and returns 0, or takes nothing and returns the seconds to wait.

        After exactly that wait the same call succeeds, if nobody else took tokens meanwhile. Raises
        ValueError for a negative cost.
        """
        wait_s = self.wait_s(cost, now)
        if wait_s == 0:
            self.charge(cost)
        return wait_s

    def wait_s(self, cost: float, now: float) -> float:
        """What `try_take` would return, without taking anything."""
        if not cost >= 0:
            raise ValueError(f"cost must not be negative, not {cost!r}")
        if cost > self.burst:
            return math.inf
        wait_s = (cost - self.level(now)) / self.rate_per_s
        # Who comes back at the told instant is on time although floats round: what is lent here
        # stays in the balance as a debt, so no rate is gained in the long run.
        return wait_s if wait_s > self._rounding_s + 4 * math.ulp(now) else 0.0

    def level(self, now: float) -> float:
        """Tokens there are; below 0 while a debt lasts."""
        if now > self._updated_at:
            gained = (now - self._updated_at) * self.rate_per_s
            self._tokens = min(self.burst, self._tokens + gained)
            self._updated_at = now
        return self._tokens

    def charge(self, cost: float) -> None:
        """Takes tokens whether or not they are there: what is missing is a debt."""
        self._tokens -= cost

    def give_back(self, cost: float) -> None:
        """Returns tokens of something that did not happen after all."""
        self._tokens = min(self.burst, self._tokens + cost)


class VirtualTail:
    """Gives each of several clients that are refused together its own instant to come back.

    The k-th is told a place k intervals later, as if they stood in line, so they do not all return
    at once. Places start again at the front once the line would be longer than `max_spread_s`:
    somebody who hammers must not push everybody else out to the hours.
    """

    __slots__ = ("_max_spread_s", "_tail_at")

    def __init__(self, max_spread_s: float = 60.0) -> None:
        self._max_spread_s = max_spread_s
        self._tail_at = -math.inf

    def place(self, now: float, wait_s: float, interval_s: float) -> float:
        """Seconds until this client's place; at least `wait_s`, which is when the first could come."""
        first_at = now + wait_s
        place_at = max(first_at, self._tail_at + interval_s)
        if place_at > first_at + self._max_spread_s:
            place_at = first_at
        self._tail_at = place_at
        return max(wait_s, place_at - now)
