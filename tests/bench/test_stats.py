"""Percentiles, what is withheld, and intervals that contain what they should as often as they claim."""

from __future__ import annotations

import builtins
import math
import random
from typing import Any

import numpy as np
import pytest

from llm_runtime.bench import stats
from llm_runtime.core.errors import ConfigError


@pytest.mark.parametrize(
    ("percentile", "least"), [(50, 1), (75, 40), (90, 100), (95, 200), (99, 1000), (99.9, 10_000)]
)
def test_a_percentile_needs_ten_samples_beyond_it(percentile: float, least: int) -> None:
    assert stats.supports(percentile, least)
    assert not stats.supports(percentile, least - 1)


def test_figures_are_exact_and_percentiles_linear_between_samples() -> None:
    found = stats.describe([float(n) for n in range(1, 1002)], seed=0)
    assert (found.num_samples, found.mean, found.median) == (1001, 501.0, 501.0)
    assert (found.low, found.high) == (1.0, 1001.0)
    assert found.deviation == pytest.approx(math.sqrt((1001**2 - 1) / 12))
    assert found.percentiles == {90: 901.0, 95: 951.0, 99: 991.0}


def test_percentiles_without_support_are_withheld() -> None:
    assert stats.describe([1.0] * 999, 0).percentiles == {90: 1.0, 95: 1.0, 99: None}
    assert stats.describe([1.0] * 99, 0).percentiles == {90: None, 95: None, 99: None}


def test_an_empty_sample_has_no_figures() -> None:
    found = stats.describe([], 0)
    assert (found.num_samples, found.mean, found.median, found.deviation) == (0, None, None, None)
    assert set(found.percentiles.values()) == {None}


def test_one_value_is_its_own_mean_and_says_nothing_of_its_error() -> None:
    found = stats.describe([3.0], 0)
    assert (found.mean, found.median, found.deviation) == (3.0, 3.0, 0.0)
    assert found.intervals == {"mean": None, "median": None}


def test_intervals_are_seeded() -> None:
    source = random.Random(1)
    sample = [source.random() for _ in range(300)]
    assert stats.describe(sample, 1).intervals == stats.describe(sample, 1).intervals
    assert stats.describe(sample, 1).intervals != stats.describe(sample, 2).intervals


def test_intervals_of_independent_values_hold_the_truth_as_often_as_claimed() -> None:
    source = random.Random(3)
    hits = {"mean": 0, "median": 0}
    for trial in range(120):
        found = stats.describe([source.expovariate(1.0) for _ in range(120)], trial)
        for name, truth in (("mean", 1.0), ("median", math.log(2))):
            bounds = found.intervals[name]
            assert bounds is not None
            hits[name] += bounds[0] <= truth <= bounds[1]
    assert all(0.87 <= hit / 120 <= 0.99 for hit in hits.values())


def test_neighbours_that_share_a_queue_widen_the_interval() -> None:
    """Values in runs of ten: blocks see that they are not 1,000 independent samples."""
    source = random.Random(5)
    runs = [value for _ in range(100) for value in [source.random()] * 10]
    mixed = runs.copy()
    source.shuffle(mixed)

    def width(sample: list[float]) -> float:
        bounds = stats.describe(sample, 0).intervals["mean"]
        assert bounds is not None
        return bounds[1] - bounds[0]

    assert width(runs) > 2 * width(mixed)


def test_rows_percentiles_agree_with_numpy() -> None:
    rows = np.sort(np.random.default_rng(0).random((4, 37)), axis=1)
    for percentile in (50, 90, 95, 99):
        assert stats._of_sorted(rows, percentile) == pytest.approx(np.percentile(rows, percentile, axis=1))


@pytest.mark.parametrize(
    ("freedom", "exact"), [(4, 2.776445), (5, 2.570582), (9, 2.262157), (29, 2.045230), (199, 1.971957)]
)
def test_students_t(freedom: int, exact: float) -> None:
    assert stats.t_quantile(0.975, freedom) == pytest.approx(exact, rel=0.001)


@pytest.mark.parametrize("number", [5, 8, 20])
def test_intervals_of_a_few_rounds_are_not_too_narrow(number: int) -> None:
    source = random.Random(number)
    hits = 0
    for trial in range(120):
        bounds = stats.mean_interval([source.gauss(0.0, 1.0) for _ in range(number)], trial)
        assert bounds is not None
        hits += bounds[0] <= 0.0 <= bounds[1]
    assert hits / 120 >= 0.90


def test_four_rounds_give_no_interval() -> None:
    assert stats.mean_interval([1.0, 2.0, 3.0, 4.0], 0) is None


@pytest.mark.parametrize("number", [10, 30, 60])
def test_intervals_of_a_median_hold_it_whatever_the_tails(number: int) -> None:
    source = random.Random(number)
    hits = 0
    for trial in range(120):
        tails = [source.choice((0.0, 0.0, -3.0, 3.0)) for _ in range(number)]
        bounds = stats.median_interval([source.gauss(tail, 0.1) for tail in tails], trial)
        assert bounds is not None
        hits += bounds[0] <= 0.0 <= bounds[1]
    assert hits / 120 >= 0.90


def test_nine_values_give_no_interval_of_their_median() -> None:
    assert stats.median_interval([1.0] * 9, 0) is None
    assert stats.median_interval([1.0] * 10, 0) == (1.0, 1.0)


def test_pooled_means_are_drawn_by_request() -> None:
    assert stats.ratio_mean_interval([1.0] * 9, [10] * 9, 0) is None
    bounds = stats.ratio_mean_interval([1.0] * 10 + [3.0] * 10, [10] * 20, 0)
    assert bounds is not None
    low, high = bounds
    assert 0.1 < low < 0.2 < high < 0.3


@pytest.mark.parametrize(("percentile", "value"), [(50, 2.0), (60, 2.4), (75, 3.0), (80, None), (95, None)])
def test_failures_are_slower_than_anything(percentile: float, value: float | None) -> None:
    found = stats.with_infinite([1.0, math.inf, 2.0, 0.0, 3.0], percentile)
    assert found == (None if value is None else pytest.approx(value))


def test_without_numpy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_import = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "numpy":
            raise ImportError(name)
        return whole_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"llm-runtime\[bench\]"):
        stats.require_numpy()
