"""The rate limit and the queue cap: whom they refuse and when they tell them to return."""

from __future__ import annotations

import pytest

from llm_runtime.admission.controller import AdmissionController
from llm_runtime.admission.drain_rate import DEFAULT_INTERVAL_S, DrainRate
from llm_runtime.admission.policies import MAX_RETRY_AFTER_S, QueueCap, RateLimit
from llm_runtime.core.errors import QueueFull, RateLimited
from tests.admission.builders import load, request


def retry_after_s(policy: RateLimit | QueueCap, now: float, num_waiting: int = 0) -> float | None:
    """What the refusal tells; None if it lets the request in."""
    try:
        policy.reserve(request(), load(num_waiting), now)
    except (RateLimited, QueueFull) as error:
        return error.retry_after_s
    return None


def test_the_burst_passes_and_the_next_is_told_the_exact_wait() -> None:
    policy = RateLimit(0.2, 2)
    assert [retry_after_s(policy, 10.0) for _ in range(2)] == [None, None]
    assert retry_after_s(policy, 10.0) == pytest.approx(5.0)


@pytest.mark.parametrize(("rate", "burst"), [(5.0, 5), (5.9, 5), (0.2, 1)])
def test_the_default_burst_is_a_second_worth_and_at_least_one(rate: float, burst: int) -> None:
    policy = RateLimit(rate)
    assert sum(retry_after_s(policy, 0.0) is None for _ in range(20)) == burst


def test_f40_e_clients_refused_together_come_back_one_by_one_and_are_let_in() -> None:
    """Field case F40 e: 200 at once; each returns when told and each is served at that first return."""
    policy = RateLimit(10.0, 10)
    told = [retry_after_s(policy, 1000.0) for _ in range(210)]
    assert told[:10] == [None] * 10
    returns = [wait for wait in told[10:] if wait is not None]
    assert len(returns) == 200
    assert returns == [pytest.approx(0.1 * (k + 1)) for k in range(200)]
    assert [retry_after_s(policy, 1000.0 + wait) for wait in returns] == [None] * 200


def test_hammering_does_not_send_others_away_for_hours() -> None:
    policy = RateLimit(1.0, 1)
    policy.reserve(request(), load(), 0.0)
    for _ in range(5000):
        wait = retry_after_s(policy, 0.5)
        assert wait is not None
        assert wait <= 0.5 + MAX_RETRY_AFTER_S


def test_a_place_below_a_millisecond_is_not_zero() -> None:
    policy = RateLimit(5000.0, 1)
    policy.reserve(request(), load(), 0.0)
    wait = retry_after_s(policy, 0.0)
    assert wait == pytest.approx(1 / 5000)


def test_a_request_refused_by_another_policy_costs_no_token() -> None:
    controller = AdmissionController([RateLimit(1.0, 1)], [QueueCap(0)])
    permit = controller.admit_identity(request(), 0.0)
    with pytest.raises(QueueFull):
        controller.admit_capacity(permit, request(), load(0, would_wait=True), 0.0)
    controller.admit_identity(request(), 0.0).settle(None)
    with pytest.raises(RateLimited):
        controller.admit_identity(request(), 0.0)


def test_the_refusal_says_which_limit() -> None:
    policy = RateLimit(2.5, 4)
    for _ in range(4):
        policy.reserve(request(), load(), 0.0)
    with pytest.raises(RateLimited, match=r"2\.5 per second, 4 at once"):
        policy.reserve(request(), load(), 0.0)


@pytest.mark.parametrize(
    ("cap", "num_waiting", "would_wait", "refused"),
    [
        (2, 1, True, False),
        (2, 2, True, True),
        (2, 3, True, True),
        (0, 0, False, False),
        (0, 0, True, True),
        (2, 2, False, False),
    ],
)
def test_the_cap_refuses_only_who_would_wait_in_a_full_queue(
    cap: int, num_waiting: int, would_wait: bool, refused: bool
) -> None:
    policy = QueueCap(cap)
    state = load(num_waiting, would_wait=would_wait)
    if refused:
        with pytest.raises(QueueFull):
            policy.reserve(request(), state, 0.0)
    else:
        policy.reserve(request(), state, 0.0)


def test_a_negative_cap_is_refused() -> None:
    with pytest.raises(ValueError, match="max_queue_size"):
        QueueCap(-1)


def test_before_anything_is_known_the_wait_is_a_second() -> None:
    assert retry_after_s(QueueCap(1), 5.0, num_waiting=1) == DEFAULT_INTERVAL_S


def test_the_wait_follows_the_observed_drain_and_spreads() -> None:
    policy = QueueCap(4)
    now = 0.0
    policy.reserve(request(), load(3), now)
    for _ in range(200):
        now += 0.25
        policy.observe_finished("m", now, num_waiting=3)
    told = [retry_after_s(policy, now, num_waiting=4) for _ in range(4)]
    assert told == [pytest.approx(0.25 * k, rel=0.05) for k in (1, 2, 3, 4)]


def test_models_drain_at_their_own_rates() -> None:
    policy = QueueCap(1)
    for model, gap in (("fast", 0.1), ("slow", 4.0)):
        policy.reserve(request(model), load(0, would_wait=True), 0.0)
        for k in range(1, 40):
            policy.observe_finished(model, k * gap, num_waiting=1)
        with pytest.raises(QueueFull) as caught:
            policy.reserve(request(model), load(1), 39 * gap)
        assert caught.value.retry_after_s == pytest.approx(gap)


def test_idle_time_is_not_mistaken_for_slowness() -> None:
    """One request a minute for an hour, then a burst: the refused are not sent away for a minute."""
    rate = DrainRate()
    rate.observe(0.0, True)
    for k in range(1, 20):
        rate.observe_finished(0.5 * k, True)
    rate.observe_finished(10.0, False)
    for minute in range(60):
        rate.observe(60.0 * minute + 100, False)
        rate.observe_finished(60.0 * minute + 101, False)
    assert rate.interval_s(4000.0) == pytest.approx(0.5, rel=0.1)


def test_an_engine_that_stands_still_lengthens_the_wait_up_to_a_limit() -> None:
    policy = QueueCap(1)
    policy.reserve(request(), load(0, would_wait=True), 0.0)
    for k in range(1, 30):
        policy.observe_finished("m", 0.1 * k, num_waiting=1)
    waits = [retry_after_s(policy, 3.0 + silence, num_waiting=1) for silence in (0.0, 40.0, 4000.0)]
    assert waits[0] == pytest.approx(0.1, rel=0.05)
    assert waits[1] == pytest.approx(5.0, rel=0.05)
    assert waits[2] == MAX_RETRY_AFTER_S


def test_batches_that_end_together_are_averaged() -> None:
    rate = DrainRate()
    rate.observe(0.0, True)
    now = 0.0
    for _ in range(30):
        now += 2.0
        for _ in range(8):
            rate.observe_finished(now, True)
    assert 0.25 / 2 < rate.interval_s(now) < 0.25 * 2


def test_all_ending_at_one_instant_still_gives_a_wait_above_zero() -> None:
    rate = DrainRate()
    rate.observe(1.0, True)
    for _ in range(100):
        rate.observe_finished(1.0, True)
    assert rate.interval_s(1.0) > 0
