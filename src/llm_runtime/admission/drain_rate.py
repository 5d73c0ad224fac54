"""How fast a pool's queue drains, learnt from the times at which requests end."""

from __future__ import annotations

DEFAULT_INTERVAL_S = 1.0
MIN_INTERVAL_S = 0.001
GAIN = 0.1
# A static batch ends all at once and then not for a while, so a silence says something only when
# it has lasted for several mean intervals.
SILENCE_INTERVALS = 8


class DrainRate:
    """Mean time between two requests that leave, counted only while others wait.

    An idle or half-idle pool ends few requests because few come; counting that time would tell the
    first refused of the next burst to stay away for minutes. So the clock stands while nobody waits.
    """

    __slots__ = ("_busy", "_gap_s", "_mean_s", "_num_gaps", "_seen_at")

    def __init__(self) -> None:
        self._busy = False
        self._seen_at = 0.0
        self._gap_s = 0.0
        self._mean_s = DEFAULT_INTERVAL_S
        self._num_gaps = 0

    def observe(self, now: float, busy: bool) -> None:
        """busy: from now on, until told otherwise, somebody waits."""
        if self._busy:
            self._gap_s += max(now - self._seen_at, 0.0)
        self._seen_at = now
        self._busy = busy

    def observe_finished(self, now: float, busy: bool) -> None:
        """A request left; busy: somebody waits still."""
        was_busy = self._busy
        self.observe(now, busy)
        if not was_busy:
            return
        self._num_gaps += 1
        self._mean_s += max(GAIN, 1 / self._num_gaps) * (self._gap_s - self._mean_s)
        self._gap_s = 0.0

    def interval_s(self, now: float) -> float:
        """Expected seconds between two requests that leave a busy pool: never 0, and 1 if unknown."""
        self.observe(now, self._busy)
        return max(MIN_INTERVAL_S, self._mean_s, self._gap_s / SILENCE_INTERVALS)


class DrainRates:
    """One `DrainRate` for each model. The models are those that are served, so the map is bounded."""

    __slots__ = ("_by_model",)

    def __init__(self) -> None:
        self._by_model: dict[str, DrainRate] = {}

    def observe(self, model: str, now: float, *, busy: bool) -> None:
        self._of(model).observe(now, busy)

    def observe_finished(self, model: str, now: float, *, busy: bool) -> None:
        self._of(model).observe_finished(now, busy)

    def interval_s(self, model: str, now: float) -> float:
        return self._of(model).interval_s(now)

    def _of(self, model: str) -> DrainRate:
        rate = self._by_model.get(model)
        if rate is None:
            rate = self._by_model[model] = DrainRate()
        return rate
