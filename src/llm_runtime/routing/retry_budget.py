"""How many further attempts a pool may make: a share of its requests, so that a fleet that fails as a whole
is not given a multiple of its load on top. Pure; time is an argument."""

from __future__ import annotations

from typing import Final

MAX_SAVED: Final = 20.0
"""Attempts that can be saved up: enough for what runs on a replica that goes away at once."""

RESERVE_PER_S: Final = 1.0
"""Comes in beside the share, so that a quiet pool can try again too."""


class RetryBudget:
    """Owned by one dispatcher. share: attempts earned by each request; 0: none at all are allowed."""

    __slots__ = ("_saved", "_share", "_since")

    def __init__(self, share: float, now: float) -> None:
        self._share = share
        self._saved = MAX_SAVED
        self._since = now

    def request(self) -> None:
        """A request was given to an engine for the first time."""
        saved = self._saved + self._share
        self._saved = saved if saved < MAX_SAVED else MAX_SAVED

    def take(self, now: float) -> bool:
        """Whether one more attempt may be made; it is then spent."""
        if self._share <= 0:
            return False
        self._saved = min(self._saved + max(now - self._since, 0.0) * RESERVE_PER_S, MAX_SAVED)
        self._since = now
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
