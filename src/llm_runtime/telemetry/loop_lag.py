"""How late the event loop is: a timer that should fire now and fires when the loop gets to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

DEFAULT_INTERVAL_S = 0.5
WINDOW_S = 60.0


class LoopLag:
    """Owned by the runtime, which supervises `run`; read from the loop's thread.

    The largest lag is kept over a sliding window instead of being reset by who reads it: two scrapers
    would otherwise steal each other's peaks.
    """

    def __init__(
        self, interval_s: float = DEFAULT_INTERVAL_S, *, window_s: float = WINDOW_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._interval_s = interval_s
        self._half_window_s = window_s / 2
        self._now = now
        self._half_since = now()
        self._half_max_s = 0.0
        self._previous_max_s = 0.0
        self.last_s = 0.0

    @property
    def max_s(self) -> float:
        """The largest lag of the last half to whole window."""
        return max(self._half_max_s, self._previous_max_s)

    def record(self, planned_at: float, now: float) -> None:
        """One measurement. Timers may fire a little early, which is no lag."""
        halves = (now - self._half_since) // self._half_window_s
        if halves >= 1:
            self._previous_max_s = self._half_max_s if halves == 1 else 0.0
            self._half_max_s = 0.0
            self._half_since += halves * self._half_window_s
        self.last_s = max(now - planned_at, 0.0)
        self._half_max_s = max(self._half_max_s, self.last_s)

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            planned_at = self._now() + self._interval_s
            await asyncio.sleep(self._interval_s)
            self.record(planned_at, self._now())
