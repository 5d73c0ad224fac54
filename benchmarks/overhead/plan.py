"""How long is measured what, and which figures come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PhaseName = Literal["streams", "steps", "plain", "paced", "poisson"]
PHASES: tuple[PhaseName, ...] = ("streams", "steps", "plain", "paced", "poisson")


@dataclass(frozen=True, slots=True)
class Plan:
    """Seconds of measurement per turn and phase; every participant has one turn per round.

    streams, num_tokens, gap_s: streams at once, tokens of each, seconds between them. concurrency:
    plain requests at once in the phase `plain`; plain_rate_per_s: arrivals of such in `paced`. rate_per_s:
    arrivals of streams in the phase `poisson`. awake: see `awake.Awake`.
    """

    rounds: int = 7
    streams_s: float = 5.0
    steps_s: float = 5.0
    plain_s: float = 3.0
    paced_s: float = 4.0
    poisson_s: float = 6.0
    warmup_s: float = 0.5
    streams: int = 64
    num_tokens: int = 64
    gap_s: float = 0.02
    concurrency: int = 16
    plain_rate_per_s: float = 300.0
    rate_per_s: float = 25.0
    seed: int = 1
    pinned: bool = True
    awake: bool = False

    def window_s(self, phase: PhaseName) -> float:
        return {
            "streams": self.streams_s,
            "steps": self.steps_s,
            "plain": self.plain_s,
            "paced": self.paced_s,
            "poisson": self.poisson_s,
        }[phase]

    @property
    def phases(self) -> tuple[PhaseName, ...]:
        return tuple(name for name in PHASES if self.window_s(name) > 0)


FULL = Plan()
QUICK = Plan(rounds=3, streams_s=2.5, steps_s=0.0, plain_s=1.5, paced_s=1.5, poisson_s=0.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One column. digits: after the point, in tables. relative: participants compare by ratio, else
    by difference."""

    name: str
    title: str
    digits: int
    relative: bool


METRICS = (
    Metric("token_us", "CPU, µs per streamed token", 1, True),
    Metric("step_token_us", "the same, engine steps", 1, True),
    Metric("plain_ms", "CPU, ms per plain request", 3, True),
    Metric("paced_ms", "the same, at one rate for all", 3, True),
    Metric("ttft_added_p50_ms", "TTFT added, p50 ms", 2, False),
    Metric("delay_added_p50_ms", "token delay added, p50 ms", 2, False),
    Metric("delay_added_p99_ms", "token delay added, p99 ms", 2, False),
    Metric("itl_added_p99_ms", "ITL added, p99 ms", 2, False),
    Metric("peak_mb", "peak memory, MB", 0, True),
)
BY_NAME = {metric.name: metric for metric in METRICS}
