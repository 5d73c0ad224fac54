"""Schedules: exact where they are exact, statistics where they are random, and the same for one seed."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest

from llm_runtime.bench.arrivals import offsets
from llm_runtime.bench.config import OpenLoop, Process, Segment


def first(load: OpenLoop, number: int, seed: int = 7) -> list[float]:
    return list(islice(offsets(load, seed), number))


def test_constant_rate_is_a_grid_that_starts_at_once() -> None:
    assert first(OpenLoop(4.0, "constant"), 5) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_infinite_rate_is_all_at_once() -> None:
    assert first(OpenLoop(math.inf), 3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [1.0, 0.25, 4.0])
def test_gamma_gaps_have_the_mean_of_the_rate_and_the_spread_of_the_shape(burstiness: float) -> None:
    instants = first(OpenLoop(50.0, "gamma", burstiness), 40_001)
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    assert fmean(gaps) == pytest.approx(0.02, rel=0.03)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_poisson_counts_vary_as_poisson_counts_do() -> None:
    """No rescaling of the total: the number of arrivals in a window has a variance equal to its mean."""
    counts = [sum(at < 10.0 for at in first(OpenLoop(10.0), 200, seed)) for seed in range(300)]
    assert fmean(counts) == pytest.approx(100, rel=0.02)
    assert pstdev(counts) ** 2 == pytest.approx(100, rel=0.25)


@pytest.mark.parametrize("process", ["poisson", "gamma", "constant"])
def test_one_seed_one_schedule(process: Process) -> None:
    load = OpenLoop(5.0, process, 0.5)
    assert first(load, 50, 3) == first(load, 50, 3)
    if process != "constant":
        assert first(load, 50, 3) != first(load, 50, 4)


def test_a_ramp_reaches_every_instant_its_integral_says() -> None:
    """Rate t from 0 to 10: t^2 / 2 arrivals after t seconds, so arrival n is due at sqrt(2 n)."""
    instants = first(OpenLoop(process="constant", profile=(Segment(10.0, 0.0, 10.0),)), 50)
    assert instants == pytest.approx([math.sqrt(2 * number) for number in range(50)])


def test_a_falling_ramp_mirrors_a_rising_one() -> None:
    instants = first(OpenLoop(process="constant", profile=(Segment(10.0, 10.0, 0.0),)), 50)
    assert instants == pytest.approx([10 - math.sqrt(2 * (50 - number)) for number in range(50)])


def test_a_profile_repeats_and_keeps_its_silences() -> None:
    burst = OpenLoop(process="constant", profile=(Segment(1.0, 4.0, 4.0), Segment(9.0, 0.0, 0.0)))
    assert first(burst, 9) == pytest.approx([0, 0.25, 0.5, 0.75, 1.0, 10.25, 10.5, 10.75, 11.0])


def test_rates_of_a_bursty_profile_are_met_in_each_part() -> None:
    load = OpenLoop(process="poisson", profile=(Segment(10.0, 20.0, 20.0), Segment(10.0, 200.0, 200.0)))
    instants = [at for at in first(load, 120_000) if at < 400.0]
    slow = sum(at % 20.0 < 10.0 for at in instants)
    assert slow == pytest.approx(4000, rel=0.05)
    assert len(instants) - slow == pytest.approx(40_000, rel=0.02)
