"""The budget for further attempts: a share of the requests, whatever the failures."""

from __future__ import annotations

from llm_runtime.routing.retry_budget import MAX_SAVED, RetryBudget


def test_what_is_saved_is_spent_once() -> None:
    budget = RetryBudget(0.2, now=0.0)
    assert sum(budget.take(0.0) for _ in range(100)) == MAX_SAVED


def test_a_fleet_that_fails_as_a_whole_gets_its_share_more_and_not_a_multiple() -> None:
    budget, num_retries = RetryBudget(0.2, now=0.0), 0
    for number in range(10_000):
        budget.request()
        num_retries += budget.take(number * 1e-4)
    assert 0.2 * 10_000 - 1 <= num_retries <= 0.2 * 10_000 + MAX_SAVED + 1


def test_a_quiet_pool_earns_by_time() -> None:
    budget = RetryBudget(0.2, now=0.0)
    while budget.take(0.0):
        pass
    assert not budget.take(0.5)
    assert budget.take(1.6)
    assert not budget.take(1.6)


def test_time_that_goes_back_earns_nothing() -> None:
    budget = RetryBudget(0.2, now=100.0)
    while budget.take(100.0):
        pass
    assert not budget.take(50.0)


def test_no_share_is_no_retry() -> None:
    assert not RetryBudget(0.0, now=0.0).take(1000.0)
