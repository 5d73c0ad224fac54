"""A piecewise linear function: how long a step takes for so many sequences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Curve:
    """Through (x, y) points of ascending x; beyond the ends the first and the last stretch go on.

    A single point makes a constant. Raises ValueError without points or with x that does not ascend.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        xs = [x for x, _ in self.points]
        if not xs or any(later <= earlier for earlier, later in pairwise(xs)):
            raise ValueError("a curve needs points of ascending x")

    def __call__(self, x: float) -> float:
        points = self.points
        if len(points) == 1:
            return points[0][1]
        right = min(max(bisect_right(points, (x, float("inf"))), 1), len(points) - 1)
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)

    def table(self, largest: int) -> tuple[float, ...]:
        """Values at 0, 1, ... largest, for a caller in a hurry."""
        return tuple(self(x) for x in range(largest + 1))


def constant(value: float) -> Curve:
    return Curve(((0.0, value),))


def line(at_one: float, per_more: float) -> Curve:
    """`at_one` for one sequence and `per_more` for each further one; nothing for none."""
    return Curve(((0.0, 0.0), (1.0, at_one), (2.0, at_one + per_more)))


def through(points: Iterable[tuple[float, float]]) -> Curve:
    return Curve(tuple(sorted(points)))
