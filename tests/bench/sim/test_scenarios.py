"""The arithmetic of scenarios that compare policies; the scenarios themselves are run by `make bench`."""

from __future__ import annotations

import itertools

import pytest

from llm_runtime.bench.scenarios import batching, priority
from llm_runtime.bench.scenarios.batching import MODES, QUICK, Throughputs


def test_one_at_a_time_and_batches_are_simulated_as_arithmetic_says() -> None:
    fifo = batching.simulated(MODES["fifo"], 8, QUICK, 0.0)
    assert fifo == pytest.approx(4 / 0.065, rel=1e-6)
    alone = batching.simulated(MODES["fifo"], 1, QUICK, 0.010)
    assert alone == pytest.approx(4 / 0.075, rel=0.01)
    assert batching.simulated(MODES["batch_8"], 1, QUICK, 0.0) == pytest.approx(fifo, rel=1e-6)
    full = batching.simulated(MODES["batch_8"], 64, QUICK, 0.0)
    assert 0.9 * 32 / 0.065 < full <= 32 / 0.065


def test_gains_are_by_the_mode_without_batches_of_the_same_length() -> None:
    real: Throughputs = {
        "fifo": {1: 50.0, 64: 60.0}, "batch_8": {1: 50.0, 64: 480.0},
        "fifo_long": {1: 70.0, 64: 70.0}, "batch_16_long": {1: 63.0, 64: 1050.0},
    }  # fmt: skip
    model = {name: {level: value * 1.1 for level, value in levels.items()} for name, levels in real.items()}
    figures = batching.figures_of(real, model)
    assert figures["gain_batch_8_64"] == 8.0
    assert figures["gain_batch_16_long_1"] == pytest.approx(0.9)
    assert figures["worst_model_error"] == pytest.approx(0.1)


def test_strict_priority_gains_what_it_must_and_ages_between_fifo_and_itself() -> None:
    found = {name: priority.figures_of(priority.simulated(arm)) for name, arm in priority.ARMS.items()}
    fifo, strict = found["fifo"], found["strict"]
    # The first request starts alone; eight urgent ones fill two batches after it, or come last.
    assert strict["high_mean_ttft_ms"] == pytest.approx(65 * 1.5 + 35 - 40)
    assert strict["low_worst_ttft_ms"] == pytest.approx(65 * 8 + 35)
    assert fifo["low_worst_ttft_ms"] == pytest.approx(65 * 6 + 35)
    assert found["fast_aging"] == fifo
    assert found["aging"] == strict
    assert fifo["low_starved_share"] == pytest.approx(3 / 24)


def test_the_best_is_no_worse_than_any_policy_and_lower_with_more_room() -> None:
    bounds = [priority.best(factor, 1) for factor in (1.0, 1.25, 1.5)]
    assert bounds == sorted(bounds, reverse=True)
    fifo = priority.figures_of(priority.simulated(priority.ARMS["fifo"]))
    strict = priority.figures_of(priority.simulated(priority.ARMS["strict"]))
    assert bounds[0] <= (fifo["high_mean_ttft_ms"] or 0)
    assert bounds[2] <= (strict["high_mean_ttft_ms"] or 0)


def test_the_best_of_a_small_case_is_that_of_trying_every_order() -> None:
    """Orders instead of compositions: every request's place, batches in order, worst low wait bounded."""
    best = None
    rest = 24 + 8 - 4
    for places in itertools.combinations(range(0, rest, 4), 2):  # urgent ones in whole batches
        starts = [1 + place // 4 for place in places for _ in range(4)]
        lows = [1 + place // 4 for place in range(0, rest, 4) if place not in places]
        if max(lows) <= 1.25 * 5:
            mean = sum(starts) / 8 * 65 + 35 - 40
            best = mean if best is None else min(best, mean)
    assert best is not None
    assert priority.best(1.25, 4) == pytest.approx(best)
