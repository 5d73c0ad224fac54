"""Whether an upstream counts as up: one miss means nothing, several in a row do. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_RETRY_S = 0.25
"""Wait after the first look at an upstream that is down; doubles up to the usual interval."""

MISS_RETRY_S = 0.5
"""Wait after a miss that has not settled anything yet."""


@dataclass(frozen=True, slots=True)
class Reachability:
    """up: None before the first look. misses: in a row; looks_down: since it counts as down."""

    up: bool | None = None
    reason: str | None = None
    misses: int = 0
    looks_down: int = 0

    def seen(self) -> Reachability:
        return Reachability(up=True)

    def missed(self, reason: str, *, limit: int) -> Reachability:
        """limit: misses in a row after which it is down; at the very start the first one is enough."""
        misses = self.misses + 1
        if self.up and misses < limit:
            return replace(self, misses=misses, reason=None)
        return Reachability(False, reason, misses, self.looks_down + 1 if self.up is False else 1)

    def next_look_s(self, interval_s: float) -> float:
        if self.up:
            return interval_s if not self.misses else min(interval_s, MISS_RETRY_S)
        backoff_s = FIRST_RETRY_S * 2.0 ** min(max(self.looks_down - 1, 0), 16)
        return min(interval_s, backoff_s)
