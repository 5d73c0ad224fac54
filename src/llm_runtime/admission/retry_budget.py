"""A budget for retries, so that they do not keep an overload alive that has ended of itself.

Every request that is let in at its first try earns a share of a retry; a retry spends a whole one. So
of what is let in while there is a queue, retries are at most that share of first tries, and some at once.
"""

from __future__ import annotations

from typing import Final

BURST: Final = 10.0


class RetryBudget:
    """Of one pool. share: retries by first tries."""

    __slots__ = ("_left", "_share")

    def __init__(self, share: float) -> None:
        self._share = share
        self._left = BURST

    def earn(self) -> None:
        """A request was let in at its first try."""
        left = self._left + self._share
        self._left = left if left < BURST else BURST

    def spend(self) -> bool:
        """Whether a retry may be let in, which then has been spent."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
