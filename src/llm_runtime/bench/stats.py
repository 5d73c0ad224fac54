"""Means, percentiles and how sure they are.

Percentiles: linear between order statistics (numpy's and `vllm bench serve`'s default). A percentile
above the median is withheld unless at least ten samples are expected beyond it: p90 from 100, p95
from 200, p99 from 1,000. Intervals: 95 %, bootstrap, seeded. Requests near each other in time share
a queue, so within a run whole blocks of neighbours are drawn (circular blocks of n^(1/3) requests);
independent draws would look surer than they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from llm_runtime.core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Interval = tuple[float, float]

SAMPLES_BEYOND = 10
MIN_FOR_INTERVAL = 10
NUM_RESAMPLES = 1000
MAX_DRAWN = 20_000_000
"""Values drawn in all, by which the number of resamples is reduced for very large samples."""
MIN_RESAMPLES = 200
CHUNK = 1_000_000
LEVEL = 0.95
PERCENTILES = (90, 95, 99)
RULE = "percentiles above the median need ten samples beyond them: p90 from 100, p95 from 200, p99 from 1000"


def require_numpy() -> Any:
    """numpy, or ConfigError telling how to get it."""
    try:
        import numpy
    except ImportError as error:
        raise ConfigError("bench needs numpy: pip install 'llm-runtime[bench]'") from error
    return numpy


def supports(percentile: float, num_samples: int) -> bool:
    """Whether so many samples can say anything about that percentile."""
    if percentile <= 50:
        return num_samples >= 1
    return num_samples * (100 - percentile) >= 100 * SAMPLES_BEYOND - 1e-9


@dataclass(frozen=True, slots=True)
class Distribution:
    """percentiles: None where withheld. intervals: by `mean`, `median`, `p95` and so on, None where
    there are too few samples. All None for an empty sample."""

    num_samples: int
    mean: float | None
    deviation: float | None
    median: float | None
    low: float | None
    high: float | None
    percentiles: Mapping[int, float | None]
    intervals: Mapping[str, Interval | None]


def describe(sample: Sequence[float], seed: int, *, with_intervals: bool = True) -> Distribution:
    """sample: in the order of time, which the bootstrap's blocks rely on."""
    np = require_numpy()
    data = np.asarray(sample, dtype=float)
    wanted = {f"p{p}": p for p in PERCENTILES if supports(p, len(data))}
    if not len(data):
        return Distribution(0, None, None, None, None, None, dict.fromkeys(PERCENTILES), {})
    quantiles = {"median": 50, **wanted}
    found = dict(zip(quantiles, np.percentile(data, list(quantiles.values())), strict=True))
    intervals: dict[str, Interval | None] = dict.fromkeys(("mean", "median", *wanted))
    if with_intervals and len(data) >= MIN_FOR_INTERVAL:
        intervals |= _block_intervals(data, quantiles, seed)
    return Distribution(
        len(data),
        float(data.mean()),
        float(data.std()),
        float(found["median"]),
        float(data.min()),
        float(data.max()),
        {p: float(found[f"p{p}"]) if f"p{p}" in found else None for p in PERCENTILES},
        intervals,
    )


def _block_intervals(data: Floats, quantiles: Mapping[str, int], seed: int) -> dict[str, Interval]:
    np = require_numpy()
    n = len(data)
    block = max(1, round(n ** (1 / 3)))
    num_blocks = -(-n // block)
    resamples = max(MIN_RESAMPLES, min(NUM_RESAMPLES, MAX_DRAWN // n))
    source = np.random.default_rng(seed)
    steps = np.arange(block)
    drawn: list[Floats] = []
    per_chunk = max(1, CHUNK // n)
    for first in range(0, resamples, per_chunk):
        rows = min(per_chunk, resamples - first)
        starts = source.integers(0, n, size=(rows, num_blocks, 1))
        chosen = data[((starts + steps) % n).reshape(rows, -1)[:, :n]]
        means = chosen.mean(axis=1)
        chosen.sort(axis=1)  # many times faster than numpy's percentiles of every row
        drawn.append(np.vstack([means, *(_of_sorted(chosen, p) for p in quantiles.values())]))
    table = np.concatenate(drawn, axis=1)
    tail = 100 * (1 - LEVEL) / 2
    bounds = np.percentile(table, [tail, 100 - tail], axis=1)
    names = ("mean", *quantiles)
    return {name: (float(bounds[0, i]), float(bounds[1, i])) for i, name in enumerate(names)}


def _of_sorted(rows: Floats, percentile: float) -> Floats:
    """Of each ascending row, as `numpy.percentile` defines it."""
    position = percentile / 100 * (rows.shape[1] - 1)
    below = math.floor(position)
    above = min(below + 1, rows.shape[1] - 1)
    part: Floats = rows[:, below] + (rows[:, above] - rows[:, below]) * (position - below)
    return part


def with_infinite(sample: Sequence[float], percentile: float) -> float | None:
    """A percentile of a sample that may hold infinities; None where it falls among them."""
    ordered = sorted(sample)
    position = percentile / 100 * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    share = position - below
    upper = ordered[above] if share > 0 else ordered[below]
    if math.isinf(upper):
        return None
    return ordered[below] + (upper - ordered[below]) * share


def ratio_mean_interval(sums: Sequence[float], counts: Sequence[int], seed: int) -> Interval | None:
    """Of sum(sums) / sum(counts), drawing whole requests: for means pooled over requests, as of ITL."""
    np = require_numpy()
    if len(sums) < MIN_FOR_INTERVAL:
        return None
    source = np.random.default_rng(seed)
    totals, numbers = np.asarray(sums, dtype=float), np.asarray(counts, dtype=float)
    resamples = max(MIN_RESAMPLES, min(NUM_RESAMPLES, MAX_DRAWN // len(totals)))
    means = []
    for _ in range(resamples):
        chosen = source.integers(0, len(totals), size=len(totals))
        means.append(totals[chosen].sum() / numbers[chosen].sum())
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


def mean_interval(sample: Sequence[float], seed: int) -> Interval | None:
    """Of the mean of a few independent values, as of rounds of a comparison; None below five.

    Plain percentile intervals are too narrow for so few. The levels are widened to what a t interval
    would use (T. Hesterberg, "What Teachers Should Know About the Bootstrap", 2015, section 5.3).
    """
    np = require_numpy()
    n = len(sample)
    if n < 5:
        return None
    data = np.asarray(sample, dtype=float)
    source = np.random.default_rng(seed)
    means = data[source.integers(0, n, size=(10 * NUM_RESAMPLES, n))].mean(axis=1)
    tail = 100 * NormalDist().cdf(-math.sqrt(n / (n - 1)) * t_quantile(1 - (1 - LEVEL) / 2, n - 1))
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


def median_interval(sample: Sequence[float], seed: int) -> Interval | None:
    """Of the median of independent values, as of pairs of a comparison; None below ten.

    Percentiles of the bootstrap. For a median they come close to the interval between order statistics that
    the binomial distribution gives, which assumes nothing of the values' shape.
    """
    np = require_numpy()
    if len(sample) < MIN_FOR_INTERVAL:
        return None
    data = np.asarray(sample, dtype=float)
    source = np.random.default_rng(seed)
    medians = np.median(data[source.integers(0, len(data), size=(4 * NUM_RESAMPLES, len(data)))], axis=1)
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(medians, [tail, 100 - tail])
    return float(low), float(high)


def t_quantile(level: float, freedom: int) -> float:
    """Of Student's t, by the Cornish-Fisher expansion; within 0.3 % from 4 degrees of freedom on."""
    z = NormalDist().inv_cdf(level)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, start=1))
