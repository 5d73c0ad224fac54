"""When an engine's steps ended, from which the gaps between tokens follow."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise


class StepLog:
    """When each step of an engine ended, as stretches of equal steps. Steps count from 1."""

    def __init__(self) -> None:
        self._before: list[int] = []
        self._stretches: list[tuple[float, float]] = []

    def add(self, num_before: int, begun_at: float, step_s: float) -> None:
        """From begun_at on, after so many steps, every one lasts step_s."""
        self._before.append(num_before)
        self._stretches.append((begun_at, step_s))

    def end_of(self, step: int) -> float:
        index = bisect_left(self._before, step) - 1
        begun_at, step_s = self._stretches[index]
        return begun_at + (step - self._before[index]) * step_s

    def gaps(self, first: int, last: int) -> list[float]:
        """Seconds between the ends of consecutive steps from `first` to `last`."""
        ends = [self.end_of(step) for step in range(first, last + 1)]
        return [later - earlier for earlier, later in pairwise(ends)]
