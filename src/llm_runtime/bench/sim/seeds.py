"""One measurement over many seeds, and what can be said of its figures.

Variants are measured on the same seeds, so that they see the same arrivals, and compared as ratios
within a seed. Intervals: 95 %, bootstrap over seeds.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from llm_runtime.bench import stats

Figures = Mapping[str, float]
Measure = Callable[[int], Mapping[str, Figures]]
"""seed -> figures by variant. A function of a module, if it is to run in processes."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over seeds and its interval, None below five seeds; lowest and highest value."""

    mean: float
    interval: stats.Interval | None
    low: float
    high: float
    num_seeds: int


def over_seeds(measure: Measure, seeds: Iterable[int], *, processes: int = 1) -> list[Mapping[str, Figures]]:
    """In the order of the seeds. processes: above 1, that many beside this one."""
    seeds = list(seeds)
    if processes <= 1:
        return [measure(seed) for seed in seeds]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        return list(pool.map(measure, seeds))


def estimates(found: Sequence[Mapping[str, Figures]], *, seed: int = 0) -> dict[str, dict[str, Estimate]]:
    """By variant and figure."""
    variants = found[0].keys() if found else ()
    return {
        variant: {
            figure: estimate([each[variant][figure] for each in found], seed=seed)
            for figure in found[0][variant]
        }
        for variant in variants
    }


def ratios(
    found: Sequence[Mapping[str, Figures]], variant: str, base: str, figure: str, *, seed: int = 0
) -> Estimate:
    """`variant` by `base` within each seed: geometric mean. Raises ValueError for values not above 0,
    which have no ratio."""
    logs = []
    for each in found:
        value, other = each[variant][figure], each[base][figure]
        if value <= 0 or other <= 0:
            raise ValueError(f"{figure} is not above 0 in every seed")
        logs.append(math.log(value / other))
    log = estimate(logs, seed=seed)
    interval = None if log.interval is None else (math.exp(log.interval[0]), math.exp(log.interval[1]))
    return Estimate(math.exp(log.mean), interval, math.exp(log.low), math.exp(log.high), log.num_seeds)


def estimate(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    mean = math.fsum(values) / len(values)
    return Estimate(mean, stats.mean_interval(values, seed), min(values), max(values), len(values))
