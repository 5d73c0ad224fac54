"""How late the client's own loop is, also in a closed loop, where no schedule would show it."""

from __future__ import annotations

from llm_runtime.bench.clock import now
from llm_runtime.bench.timers import ExactTimers

STEP_S = 0.02


class LagProbe:
    """Owned by one run. A timer on absolute instants notes its own lateness, seconds."""

    def __init__(self, timers: ExactTimers) -> None:
        self.lags_s: list[float] = []
        self._timers = timers
        self._due = now() + STEP_S
        self._timer = timers.call_at(self._due, self._tick)

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        at = now()
        self.lags_s.append(at - self._due)
        self._due = max(self._due + STEP_S, at)
        self._timer = self._timers.call_at(self._due, self._tick)
