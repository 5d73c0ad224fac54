from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.overhead.ratios import estimate, paired_difference, paired_ratio

ROUNDS = st.lists(st.floats(0.1, 1e6), min_size=5, max_size=15)


def test_ratio_is_formed_within_rounds_before_the_median() -> None:
    # The machine was ten times slower in the second round: the ratio of medians would be 20 / 10.
    found = paired_ratio([1.0, 200.0, 20.0], [2.0, 400.0, 10.0])
    assert found is not None
    assert found.median == 0.5
    assert found.values == (0.5, 0.5, 2.0)


def test_rounds_without_a_partner_are_left_out() -> None:
    found = paired_difference([5.0, None, 7.0], [1.0, 2.0, None])
    assert found is not None
    assert found.values == (4.0,)
    assert found.low is None


def test_nothing_measured_is_no_estimate() -> None:
    assert estimate([None, None]) is None
    assert paired_ratio([1.0], [0.0]) is None


@settings(max_examples=20)
@given(ROUNDS)
def test_interval_holds_the_median_and_lies_within_the_values(values: list[float]) -> None:
    found = estimate(values)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert min(values) <= found.low <= found.median <= found.high <= max(values)


def test_interval_of_seven_rounds_is_not_moved_by_one_wild_round() -> None:
    found = estimate([1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 50.0])
    assert found is not None
    assert found.high is not None
    assert found.high < 2
    assert found == estimate([1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 50.0])  # seeded


@pytest.mark.parametrize("size", [1, 4])
def test_few_rounds_have_no_interval(size: int) -> None:
    found = estimate([3.0] * size)
    assert found is not None
    assert (found.median, found.low, found.high) == (3.0, None, None)
