"""How late the client's own loop is, also in a closed loop, where no schedule would show it."""

from __future__ import annotations

import asyncio

STEP_S = 0.02


class LagProbe:
    """Owned by one run. A timer on absolute instants notes its own lateness, seconds."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + STEP_S
        self._timer = self._loop.call_at(self._due, self._tick)

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        at = self._loop.time()
        self.lags_s.append(at - self._due)
        self._due = max(self._due + STEP_S, at)
        self._timer = self._loop.call_at(self._due, self._tick)
