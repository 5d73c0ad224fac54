"""The breaker: a value that changes by failures, answers and time; nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.routing.breaker import CLOSED, Breaker, BreakerRules, BreakerState

RULES = BreakerRules(failures=3, open_s=2.0, open_max_s=10.0)


def failed(breaker: Breaker, times: int, now: float = 0.0) -> Breaker:
    for _ in range(times):
        breaker = breaker.failed(now, RULES)
    return breaker


def test_it_opens_at_the_threshold_and_not_before() -> None:
    assert failed(CLOSED, 2).state is BreakerState.CLOSED
    assert failed(CLOSED, 3).state is BreakerState.OPEN


def test_an_answer_between_begins_the_count_anew() -> None:
    breaker = failed(failed(CLOSED, 2).answered(), 2)
    assert breaker.state is BreakerState.CLOSED


def test_time_makes_it_half_open_and_an_answer_closes_it() -> None:
    breaker = failed(CLOSED, 3, now=100.0)
    assert breaker.at(101.9).state is BreakerState.OPEN
    half_open = breaker.at(102.0)
    assert half_open.state is BreakerState.HALF_OPEN
    assert half_open.answered() == CLOSED


def test_a_failed_trial_opens_it_for_longer_up_to_a_limit() -> None:
    breaker, now, spans = failed(CLOSED, 3), 0.0, []
    for _ in range(6):
        spans.append(breaker.open_until - now)
        now = breaker.open_until
        breaker = breaker.at(now).failed(now, RULES)
    assert spans == [2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_after_an_answer_the_pause_is_short_again() -> None:
    breaker = failed(CLOSED, 3)
    breaker = breaker.at(2.0).failed(2.0, RULES).at(6.0).answered()
    assert failed(breaker, 3, now=10.0).open_until == 12.0


def test_while_open_what_was_running_changes_nothing() -> None:
    breaker = failed(CLOSED, 3)
    assert breaker.failed(1.0, RULES) == breaker
    assert breaker.answered() == breaker


EVENTS = st.lists(st.tuples(st.sampled_from(["failed", "answered"]), st.floats(0.0, 5.0)), max_size=40)


@given(EVENTS, st.integers(1, 5))
def test_it_is_open_only_after_so_many_failures_in_a_row_and_never_for_ever(
    events: list[tuple[str, float]], threshold: int
) -> None:
    rules, breaker, now, run = BreakerRules(threshold, 1.0, 8.0), CLOSED, 0.0, 0
    for what, passes_s in events:
        now += passes_s
        breaker = breaker.at(now)
        if breaker.state is BreakerState.OPEN:
            assert run >= threshold
            assert 0 < breaker.open_until - now <= rules.open_max_s + 1e-6
            continue
        if what == "failed":
            run += 1
            was_half_open = breaker.state is BreakerState.HALF_OPEN
            breaker = breaker.failed(now, rules)
            assert (breaker.state is BreakerState.OPEN) == (was_half_open or run >= threshold)
        else:
            run = 0
            breaker = breaker.answered()
            assert breaker == CLOSED
    assert breaker.at(now + rules.open_max_s + 1e-6).state is not BreakerState.OPEN


@pytest.mark.parametrize("openings", [0, 40, 10_000])
def test_many_openings_do_not_overflow(openings: int) -> None:
    breaker = Breaker(BreakerState.HALF_OPEN, failures=3, openings=openings)
    assert breaker.failed(0.0, RULES).open_until <= RULES.open_max_s
