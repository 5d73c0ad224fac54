"""The rate limit: whom it refuses and when it tells them to return."""

from __future__ import annotations

import pytest

from llm_runtime.admission.capacity_gate import CapacityGate
from llm_runtime.admission.controller import AdmissionController
from llm_runtime.admission.policies import RateLimit
from llm_runtime.core.errors import QueueFull, RateLimited
from tests.admission.builders import load, request


def retry_after_s(policy: RateLimit, now: float) -> float | None:
    """What the refusal tells; None if it lets the request in."""
    try:
        policy.reserve(request(), load(), now)
    except RateLimited as error:
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
        assert wait <= 0.5 + 60.0


def test_a_place_below_a_millisecond_is_not_zero() -> None:
    policy = RateLimit(5000.0, 1)
    policy.reserve(request(), load(), 0.0)
    wait = retry_after_s(policy, 0.0)
    assert wait == pytest.approx(1 / 5000)


def test_a_request_refused_by_another_policy_costs_no_token() -> None:
    controller = AdmissionController([RateLimit(1.0, 1)], [CapacityGate(0)])
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
