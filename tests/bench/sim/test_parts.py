"""Curves, prefix caches and the agenda."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.bench.sim.agenda import Agenda
from llm_runtime.bench.sim.curve import Curve, constant, line, through
from llm_runtime.bench.sim.job import Ask
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


def played(agenda: Agenda, asks: list[Ask], **limits: float) -> tuple[list[tuple[str, float]], float]:
    seen: list[tuple[str, float]] = []
    agenda.at(2.0, lambda name, now: seen.append((name, now)), "second")
    agenda.at(1.0, lambda name, now: seen.append((name, now)), "first")
    agenda.at(2.0, lambda name, now: seen.append((name, now)), "third")
    ended = agenda.play(
        iter(asks),
        lambda ask, now: seen.append((f"ask {ask.number}", now)),
        **{"delay_s": 0.0, "horizon_s": math.inf, **limits},
    )
    return seen, ended


def test_what_is_due_is_played_in_order_and_before_who_comes_at_the_same_instant() -> None:
    asks = [Ask(0, 0.5, 1, 1, 1), Ask(1, 2.0, 1, 1, 1), Ask(2, 3.0, 1, 1, 1)]
    seen, ended = played(Agenda(), asks)
    names = ["ask 0", "first", "second", "third", "ask 1", "ask 2"]
    assert seen == list(zip(names, [0.5, 1.0, 2.0, 2.0, 2.0, 3.0], strict=True))
    assert ended == 3.0
    assert played(Agenda(), asks, delay_s=0.75)[0][0] == ("first", 1.0)


def test_nothing_is_played_beyond_the_horizon() -> None:
    seen, _ = played(Agenda(), [Ask(0, 0.5, 1, 1, 1), Ask(1, 9.0, 1, 1, 1)], horizon_s=1.5)
    assert [name for name, _ in seen] == ["ask 0", "first"]


def test_a_timer_is_known_by_its_number_and_may_note_another_one() -> None:
    agenda = Agenda()
    rung: list[tuple[int, float]] = []

    def ring(number: int, now: float) -> None:
        rung.append((number, now))
        if len(rung) == 1:
            rung.append((agenda.timer(now + 1.0, ring), now))

    number = agenda.timer(1.0, ring)
    agenda.play(iter([]), lambda ask, now: None, delay_s=0.0, horizon_s=math.inf)
    (first, at), (noted, _), (second, later) = rung
    assert (first, at, second, later) == (number, 1.0, noted, 2.0)
    assert first != second
