"""Medians over rounds, how participants compare round by round, and how sure that is. Pure.

What two participants share in a round (the machine's mood) cancels in their ratio, so ratios and
differences are formed within rounds first. Intervals: 95 %, percentile bootstrap of the median over
rounds, seeded. With seven rounds they lie within the second smallest and second largest value.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

NUM_RESAMPLES = 5000
MIN_FOR_INTERVAL = 5
TAIL = 0.025
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Estimate:
    """values: by round, those there are. low, high: None with fewer than five of them."""

    median: float
    low: float | None
    high: float | None
    values: tuple[float, ...]


def estimate(values: Values) -> Estimate | None:
    """None without any value."""
    present = tuple(value for value in values if value is not None)
    if not present:
        return None
    if len(present) < MIN_FOR_INTERVAL:
        return Estimate(median(present), None, None, present)
    source = random.Random(len(present))
    medians = sorted(median(source.choices(present, k=len(present))) for _ in range(NUM_RESAMPLES))
    low, high = medians[int(TAIL * NUM_RESAMPLES)], medians[int((1 - TAIL) * NUM_RESAMPLES) - 1]
    return Estimate(median(present), low, high, present)


def paired_ratio(numerators: Values, denominators: Values) -> Estimate | None:
    return estimate(_paired(numerators, denominators, lambda a, b: a / b if b > 0 else None))


def paired_difference(values: Values, others: Values) -> Estimate | None:
    return estimate(_paired(values, others, lambda a, b: a - b))


def _paired(
    left: Values, right: Values, combine: Callable[[float, float], float | None]
) -> list[float | None]:
    """Rounds in which either has no value have none."""
    return [
        combine(a, b) if a is not None and b is not None else None for a, b in zip(left, right, strict=True)
    ]
