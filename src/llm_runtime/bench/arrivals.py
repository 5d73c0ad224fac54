"""When requests are due: pure, seeded, computed before the load starts.

Any rate profile with any of the processes comes from one construction: gaps of mean 1 are added up
in units of expected arrivals, and each sum is mapped to the instant at which the integral of the
rate reaches it. A constant process on a ramp is thus evenly spaced in expected arrivals, and no
total is rescaled afterwards, so Poisson stays Poisson.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from llm_runtime.bench.config import OpenLoop, Process, Segment


def offsets(load: OpenLoop, seed: int) -> Iterator[float]:
    """Seconds since the start of the load, ascending, without end; the caller applies the limits."""
    if not load.profile and math.isinf(load.rate):
        return (0.0 for _ in count())
    profile = load.profile or (Segment(math.inf, load.rate, load.rate),)
    return _through(profile, _sums(load.process, load.burstiness, seed))


def _sums(process: Process, burstiness: float, seed: int) -> Iterator[float]:
    """Running sums of gaps of mean 1. The constant process starts at 0, the others after a gap."""
    if process == "constant":
        yield from (float(number) for number in count())
        return
    gap = _gap(process, burstiness, random.Random(f"arrivals:{seed}"))
    total = 0.0
    while True:
        total += gap()
        yield total


def _gap(process: Process, burstiness: float, source: random.Random) -> Callable[[], float]:
    if process == "poisson" or burstiness == 1.0:
        return lambda: source.expovariate(1.0)
    return lambda: source.gammavariate(burstiness, 1.0 / burstiness)


def _through(profile: Sequence[Segment], sums: Iterator[float]) -> Iterator[float]:
    """Maps sums of expected arrivals to seconds; the profile repeats without end."""
    segments = _endless(profile)
    start_s, segment = next(segments)
    passed = 0.0  # expected arrivals before this segment
    for total in sums:
        while (expected := _expected(segment)) < total - passed:
            passed += expected
            start_s, segment = next(segments)
        yield start_s + _instant(segment, total - passed)


def _endless(profile: Sequence[Segment]) -> Iterator[tuple[float, Segment]]:
    start_s = 0.0
    while True:
        for segment in profile:
            yield start_s, segment
            start_s += segment.duration_s


def _expected(segment: Segment) -> float:
    """Arrivals to be expected in a segment: the integral of its rate."""
    return segment.duration_s * (segment.rate_from + segment.rate_to) / 2


def _instant(segment: Segment, arrivals: float) -> float:
    """Seconds into the segment at which the integral of its rate reaches `arrivals`."""
    if arrivals <= 0:
        return 0.0
    slope = (segment.rate_to - segment.rate_from) / segment.duration_s
    # The root of rate_from * t + slope / 2 * t^2 = arrivals, in the form that has no cancellation.
    root = math.sqrt(max(0.0, segment.rate_from**2 + 2 * slope * arrivals))
    return min(segment.duration_s, 2 * arrivals / (segment.rate_from + root))
