"""Distributions of token counts and turns: `256`, `uniform:64:512`, `normal:256:64`, `lognormal:256:0.8`.

Pure: the random source is an argument. Drawn values are whole and at least 1.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from llm_runtime.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Fixed:
    value: int

    def draw(self, source: random.Random) -> int:
        return self.value

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Whole numbers from low to high, both included."""

    low: int
    high: int

    def draw(self, source: random.Random) -> int:
        return source.randint(self.low, self.high)

    def __str__(self) -> str:
        return f"uniform:{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Normal:
    mean: float
    deviation: float

    def draw(self, source: random.Random) -> int:
        return max(1, round(source.gauss(self.mean, self.deviation)))

    def __str__(self) -> str:
        return f"normal:{self.mean:g}:{self.deviation:g}"


@dataclass(frozen=True, slots=True)
class LogNormal:
    """median: of the values; sigma: standard deviation of their logarithm."""

    median: float
    sigma: float

    def draw(self, source: random.Random) -> int:
        return max(1, round(self.median * math.exp(source.gauss(0.0, self.sigma))))

    def __str__(self) -> str:
        return f"lognormal:{self.median:g}:{self.sigma:g}"


Length = Fixed | Uniform | Normal | LogNormal


def parse_length(text: str) -> Length:
    """Reads the notation of this module's title. Raises ConfigError naming the text."""
    kind, *numbers = text.strip().split(":")
    try:
        if not numbers:
            return _checked(Fixed(int(kind)), int(kind))
        first, second = (float(number) for number in numbers)
        if kind == "uniform":
            low, high = int(numbers[0]), int(numbers[1])
            return _checked(Uniform(low, high), low, high - low + 1)
        if kind == "normal":
            return _checked(Normal(first, second), first, 1 + second)
        if kind == "lognormal":
            return _checked(LogNormal(first, second), first, 1 + second)
    except ValueError:
        pass
    raise ConfigError(f"{text!r} is no length; write 256, uniform:64:512, normal:256:64 or lognormal:256:0.8")


def _checked(length: Length, *at_least_one: float) -> Length:
    # Also false for NaN and, where a range is upside down, for its width.
    if not all(1 <= value < math.inf for value in at_least_one):
        raise ValueError
    return length
