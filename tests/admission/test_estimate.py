"""The token estimate: what it learns, how fast, and what cannot spoil it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.admission.estimate import TokenEstimator


def test_before_anything_is_known_four_bytes_are_a_token() -> None:
    estimator = TokenEstimator()
    assert estimator.estimate("m", 4000) == 1000
    assert estimator.estimate("m", 1) == 1
    assert estimator.estimate("m", 0) == 1


@pytest.mark.parametrize("bytes_per_token", [1.5, 3.0, 4.4, 8.0])
@pytest.mark.parametrize("offset", [0, 30, 300])
def test_it_learns_the_ratio_and_the_template(bytes_per_token: float, offset: int) -> None:
    rng = random.Random(7)
    estimator = TokenEstimator()

    def tokens(num_bytes: int) -> int:
        return max(1, round(offset + num_bytes / bytes_per_token))

    for _ in range(600):
        num_bytes = round(10 ** rng.uniform(1.5, 4.5))
        estimator.observe("m", num_bytes, round(tokens(num_bytes) * rng.uniform(0.95, 1.05)))
    for num_bytes in (60, 400, 3000, 30_000):
        assert estimator.estimate("m", num_bytes) == pytest.approx(tokens(num_bytes), rel=0.15, abs=6)


def test_one_observation_already_helps() -> None:
    estimator = TokenEstimator()
    estimator.observe("m", 9000, 3000)
    assert abs(estimator.estimate("m", 9000) - 3000) < abs(9000 / 4 - 3000)


def test_an_image_among_texts_hardly_moves_it() -> None:
    estimator = TokenEstimator()
    for _ in range(100):
        estimator.observe("m", 4000, 1000)
    estimator.observe("m", 2_000_000, 300)
    assert estimator.estimate("m", 4000) == pytest.approx(1000, rel=0.06)


def test_a_first_observation_out_of_all_proportion_is_forgotten() -> None:
    estimator = TokenEstimator()
    estimator.observe("m", 2_000_000, 300)
    for _ in range(30):
        estimator.observe("m", 4000, 1000)
    assert estimator.estimate("m", 4000) == pytest.approx(1000, rel=0.05)


@given(
    observations=st.lists(st.tuples(st.integers(-5, 10**9), st.integers(-5, 10**9)), max_size=50),
    num_bytes=st.integers(0, 10**8),
)
def test_the_ratio_stays_within_one_and_sixteen_bytes(
    observations: list[tuple[int, int]], num_bytes: int
) -> None:
    estimator = TokenEstimator()
    for seen_bytes, seen_tokens in observations:
        estimator.observe("m", seen_bytes, seen_tokens)
    estimate = estimator.estimate("m", num_bytes)
    assert max(1, num_bytes / 16 - 1) <= estimate <= num_bytes + 1025


def test_nonsense_is_ignored() -> None:
    estimator = TokenEstimator()
    for num_bytes, num_tokens in ((0, 10), (10, 0), (-1, 5), (5, -1)):
        estimator.observe("m", num_bytes, num_tokens)
    assert estimator.estimate("m", 4000) == 1000


def test_only_so_many_models_are_kept_and_the_used_ones_stay() -> None:
    estimator = TokenEstimator(max_models=3)
    for _ in range(50):
        estimator.observe("kept", 2000, 1000)
    for number in range(100):
        estimator.observe(f"other-{number}", 4000, 1000)
        estimator.observe("kept", 2000, 1000)
    assert estimator.estimate("kept", 2000) == pytest.approx(1000, rel=0.02)
    assert estimator.estimate("other-0", 4000) == 1000
    assert len(estimator._fits) == 3


def test_asking_remembers_nothing() -> None:
    estimator = TokenEstimator(max_models=2)
    estimator.observe("a", 2000, 1000)
    for number in range(1000):
        estimator.estimate(f"x-{number}", 10)
    assert len(estimator._fits) == 1
