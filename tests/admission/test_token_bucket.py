"""The token bucket against its definition, in exact fractions, and the edges of field case F41."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.admission.token_bucket import TokenBucket, VirtualTail


class ExactBucket:
    """The definition, without rounding; follows the decisions it is told."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self.rate, self.burst = Fraction(rate_per_s), Fraction(burst)
        self.tokens = self.burst
        self.at: Fraction | None = None

    def refill(self, now: float) -> Fraction:
        at = Fraction(now)
        if self.at is not None and at > self.at:
            self.tokens = min(self.burst, self.tokens + (at - self.at) * self.rate)
        self.at = at if self.at is None else max(at, self.at)
        return self.tokens


gaps = st.floats(min_value=0, max_value=10, allow_subnormal=False)
rates = st.floats(min_value=0.01, max_value=1e5)


@given(
    rate=rates,
    burst=st.integers(1, 1000),
    start=st.floats(min_value=0, max_value=1e7),
    steps=st.lists(st.tuples(gaps, st.integers(0, 1000)), max_size=60),
)
def test_every_decision_is_the_exact_one_up_to_rounding(
    rate: float, burst: int, start: float, steps: list[tuple[float, int]]
) -> None:
    bucket, exact = TokenBucket(rate, burst), ExactBucket(rate, burst)
    now = start
    for gap, cost in steps:
        now += gap
        slack_s = Fraction(1e-9 + 8 * math.ulp(now) + 8 * math.ulp(burst) / rate)
        exact_wait_s = (Fraction(cost) - exact.refill(now)) / exact.rate
        wait_s = bucket.try_take(cost, now)
        if cost > burst:
            assert wait_s == math.inf
        elif wait_s == 0:
            assert exact_wait_s <= slack_s
            exact.tokens -= cost
        else:
            assert wait_s > 0
            assert abs(Fraction(wait_s) - exact_wait_s) <= slack_s * (len(steps) + 1)


@given(rate=rates, burst=st.integers(1, 50), start=st.floats(0, 1e7), times=st.lists(gaps, max_size=80))
def test_no_span_of_time_passes_more_than_burst_and_rate_allow(
    rate: float, burst: int, start: float, times: list[float]
) -> None:
    bucket = TokenBucket(rate, burst)
    passed: list[float] = []
    now = start
    for gap in times:
        now += gap / 10
        if bucket.try_take(1, now) == 0:
            passed.append(now)
    for first, begin in enumerate(passed):
        for last in range(first, len(passed)):
            allowed = burst + rate * (passed[last] - begin + 1e-8)
            assert last - first + 1 <= allowed * (1 + 1e-9)


@given(
    rate=st.floats(1e-4, 1e6), burst=st.integers(1, 1000), start=st.floats(0, 1e8), cost=st.integers(1, 1000)
)
def test_who_waits_as_long_as_told_is_let_in(rate: float, burst: int, start: float, cost: int) -> None:
    bucket = TokenBucket(rate, burst)
    cost = min(cost, burst)
    assert bucket.try_take(burst, start) == 0
    wait_s = bucket.try_take(cost, start)
    if wait_s > 0:
        assert bucket.try_take(cost, start + wait_s) == 0
    else:
        assert cost / rate <= 1e-9 + 4 * math.ulp(start) + 4 * math.ulp(burst) / rate


def test_f41_d_many_at_the_same_instant_pass_exactly_the_burst() -> None:
    bucket = TokenBucket(1 / 3, 10)
    passed = [bucket.try_take(1, 123456.789) == 0 for _ in range(100)]
    assert passed == [True] * 10 + [False] * 90


def test_f41_b_eleventh_of_a_burst_of_ten_waits_one_second() -> None:
    bucket = TokenBucket(1, 10)
    waits = [bucket.try_take(1, 1000.0) for _ in range(11)]
    assert waits[:10] == [0.0] * 10
    assert waits[10] == pytest.approx(1.0)


def test_f41_b_a_stream_one_percent_too_fast_is_refused_about_once_in_a_hundred() -> None:
    bucket = TokenBucket(1, 10)
    for _ in range(10):
        bucket.try_take(1, 0.0)
    refused = sum(bucket.try_take(1, 1 + 0.99 * k) > 0 for k in range(1000))
    assert 9 <= refused <= 11


def test_f41_a_sixty_a_minute_does_not_pass_twice_around_an_edge() -> None:
    bucket = TokenBucket(1, 60)
    first = sum(bucket.try_take(1, 59.5) == 0 for _ in range(60))
    second = sum(bucket.try_take(1, 60.5) == 0 for _ in range(60))
    assert (first, second) == (60, 1)


def test_f41_c_a_clock_that_steps_back_neither_grants_nor_locks() -> None:
    bucket = TokenBucket(1, 2)
    assert bucket.try_take(2, 5000.0) == 0
    assert bucket.try_take(1, 1400.0) == pytest.approx(1.0)
    assert bucket.try_take(1, 5001.0) == 0
    assert bucket.try_take(1, 5001.0) == pytest.approx(1.0)


def test_lending_at_the_edge_gains_no_rate() -> None:
    """A caller who always comes half a nanosecond early gets the rate and not one more."""
    bucket = TokenBucket(1000.0, 1)
    now, taken = 0.0, 1
    assert bucket.try_take(1, now) == 0
    for _ in range(20_000):
        wait_s = bucket.try_take(1, now)
        if wait_s == 0:
            taken += 1
        else:
            now += wait_s - 5e-10
    assert taken > 5000
    assert taken <= 1 + 1000.0 * now + 1e-5


def test_give_back_restores_at_most_the_burst() -> None:
    bucket = TokenBucket(1, 2)
    bucket.try_take(2, 0.0)
    bucket.give_back(1)
    assert bucket.try_take(1, 0.0) == 0
    bucket.give_back(5)
    assert [bucket.try_take(1, 0.0) == 0 for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate_per_s"):
        TokenBucket(rate, 1)


@pytest.mark.parametrize("burst", [0, 0.5, -1, math.inf, math.nan])
def test_a_burst_below_one_is_refused(burst: float) -> None:
    with pytest.raises(ValueError, match="burst"):
        TokenBucket(1.0, burst)


@pytest.mark.parametrize("cost", [-1.0, math.nan])
def test_a_negative_cost_is_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="cost"):
        TokenBucket(1.0, 1).try_take(cost, 0.0)


def test_the_tail_gives_each_of_many_its_own_place() -> None:
    tail = VirtualTail(max_spread_s=60.0)
    places = [tail.place(100.0, 0.3, 0.1) for _ in range(200)]
    assert places == [pytest.approx(0.3 + 0.1 * k) for k in range(200)]


def test_the_tail_wraps_rather_than_grow_for_ever() -> None:
    tail = VirtualTail(max_spread_s=1.0)
    places = [tail.place(0.0, 0.5, 0.25) for _ in range(1000)]
    assert max(places) <= 1.5
    assert min(places) >= 0.5
    assert len({round(place, 6) for place in places}) == 5
    assert max(places.count(place) for place in set(places)) == 200


def test_the_tail_is_forgotten_when_its_places_have_passed() -> None:
    tail = VirtualTail()
    for _ in range(5):
        tail.place(0.0, 1.0, 1.0)
    assert tail.place(50.0, 1.0, 1.0) == 1.0


@given(
    now=st.floats(0, 1e7), wait=st.floats(1e-6, 1e4), interval=st.floats(1e-6, 1e4), count=st.integers(1, 30)
)
def test_no_place_is_before_the_first_possible_instant(
    now: float, wait: float, interval: float, count: int
) -> None:
    tail = VirtualTail(max_spread_s=60.0)
    for _ in range(count):
        place = tail.place(now, wait, interval)
        assert wait <= place <= wait + 60.0 + 1e-6
