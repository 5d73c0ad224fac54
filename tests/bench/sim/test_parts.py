"""Curves and prefix caches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.bench.sim.curve import Curve, constant, line, through
from llm_runtime.bench.sim.prefix_cache import PrefixCache


@pytest.mark.parametrize(("x", "y"), [(-1, -1), (0, 1), (1, 3), (2, 5), (3, 5.5), (4, 6), (6, 7)])
def test_a_curve_is_linear_between_points_and_beyond_them(x: float, y: float) -> None:
    assert through([(4, 6), (0, 1), (2, 5)])(x) == y


def test_short_forms() -> None:
    assert [constant(3.0)(x) for x in (0, 5)] == [3.0, 3.0]
    assert line(2.0, 0.5).table(4) == (0.0, 2.0, 2.5, 3.0, 3.5)


@pytest.mark.parametrize("points", [(), ((1.0, 0.0), (1.0, 2.0)), ((2.0, 0.0), (1.0, 2.0))])
def test_points_must_ascend(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        Curve(points)


def test_a_prompt_is_matched_from_its_start() -> None:
    cache = PrefixCache(100)
    cache.add((1, 2, 3), 10)
    assert cache.match((1, 2, 9), 10, 1000) == 20
    assert cache.match((9, 2, 3), 10, 1000) == 0
    assert cache.match((1, 2, 3), 10, 25) == 24
    assert cache.match((), 10, 1) == 0


def test_the_end_of_what_was_used_least_recently_goes_first() -> None:
    cache = PrefixCache(40)
    cache.add((1, 2), 10)
    cache.add((5, 6), 10)
    cache.match((1, 2), 10, 100)
    cache.add((7,), 10)
    assert cache.match((5, 6), 10, 100) == 10
    assert cache.match((1, 2), 10, 100) == 20


@given(st.lists(st.lists(st.integers(0, 8), max_size=5, unique=True), max_size=30), st.integers(0, 60))
def test_it_never_holds_more_than_its_capacity(prompts: list[list[int]], capacity: int) -> None:
    cache = PrefixCache(capacity)
    for prompt in prompts:
        cache.add(prompt, 10)
        assert len(cache) * 10 <= capacity
        kept = cache.match(prompt, 10, 10**6)
        assert kept == min(len(prompt) * 10, capacity // 10 * 10)
