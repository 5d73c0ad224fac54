"""One tenant's limits as arithmetic: what can never be exceeded, and what is told to whom."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.admission.config import TenantLimits
from llm_runtime.admission.tenant_limits import Ledger
from llm_runtime.core.errors import (
    ConcurrencyLimited,
    NeverWithinLimit,
    RateLimited,
    RequestsLimited,
    TokensLimited,
)
from llm_runtime.core.standing import Places

SLACK = 1e-6


@dataclass
class Asked:
    """A request that was let in. ended_at: None while it runs."""

    at: float
    reserved: int
    used: int
    ended_at: float | None = None

    def runs_at(self, at: float) -> bool:
        return self.ended_at is None or self.ended_at >= at

    def counts_at(self, at: float) -> int:
        """Its reservation while it runs, then what it used of it."""
        if self.ended_at is None or self.ended_at > at:
            return self.reserved
        return min(self.used, self.reserved)


steps = st.lists(
    st.tuples(
        st.floats(min_value=0, max_value=30, allow_subnormal=False),  # time that passes
        st.integers(1, 100),  # tokens reserved
        st.floats(0, 1.5),  # of which so many are used
        st.integers(0, 4),  # how many of those that run end before it
    ),
    max_size=60,
)
limits_of_any_kind = st.builds(
    TenantLimits,
    requests_per_minute=st.none() | st.integers(1, 40),
    tokens_per_minute=st.none() | st.integers(1, 400),
    max_concurrent_requests=st.none() | st.integers(1, 5),
)


def play(limits: TenantLimits, plan: list[tuple[float, int, float, int]]) -> list[Asked]:
    ledger, now, let_in = Ledger(limits), 1000.0, list[Asked]()
    for gap, reserved, share, num_ends in plan:
        now += gap
        running = [one for one in let_in if one.ended_at is None]
        for one in running[:num_ends]:
            ledger.settle(one.reserved, one.used, now)
            one.ended_at = now
        try:
            ledger.reserve(reserved, now)
        except RateLimited:
            continue
        let_in.append(Asked(now, reserved, int(reserved * share)))
    return let_in


@given(limits_of_any_kind, steps)
def test_no_span_lets_in_more_requests_than_limit_and_time_allow(
    limits: TenantLimits, plan: list[tuple[float, int, float, int]]
) -> None:
    rpm = limits.requests_per_minute
    let_in = play(limits, plan)
    if rpm is None:
        return
    for first, begin in enumerate(let_in):
        for last in range(first, len(let_in)):
            span_s = let_in[last].at - begin.at
            assert last - first + 1 <= rpm * (1 + span_s / 60) + SLACK


@given(limits_of_any_kind, steps)
def test_no_span_uses_more_tokens_than_limit_time_and_what_others_left_allow(
    limits: TenantLimits, plan: list[tuple[float, int, float, int]]
) -> None:
    """Use beyond a reservation cannot be known when others are let in; it is a debt from its end on."""
    tpm = limits.tokens_per_minute
    let_in = play(limits, plan)
    if tpm is None:
        return
    for first, begin in enumerate(let_in):
        left = sum(one.reserved - one.counts_at(math.inf) for one in let_in[:first] if one.runs_at(begin.at))
        for last in range(first, len(let_in)):
            end_at = let_in[last].at
            counted = sum(one.counts_at(end_at) for one in let_in[first : last + 1])
            assert counted <= tpm * (1 + (end_at - begin.at) / 60) + left + SLACK


@given(limits_of_any_kind, steps)
def test_never_more_at_once_than_may_be(
    limits: TenantLimits, plan: list[tuple[float, int, float, int]]
) -> None:
    most = limits.max_concurrent_requests
    let_in = play(limits, plan)
    if most is None:
        return
    for one in let_in:
        at_once = [
            other
            for other in let_in
            if other.at <= one.at and (other.ended_at is None or other.ended_at > one.at)
        ]
        assert len(at_once) <= most


@given(
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.lists(st.integers(1, 10**6), max_size=8),
    st.floats(0, 1e8),
)
def test_who_comes_back_when_told_is_let_in(rpm: int, tpm: int, before: list[int], start: float) -> None:
    ledger = Ledger(TenantLimits(requests_per_minute=rpm, tokens_per_minute=tpm))
    for cost in before:
        ledger_takes(ledger, min(cost, tpm), start)
    cost = min(before[0] if before else 1, tpm)
    told_s = wait_told(ledger, cost, start)
    if told_s is not None:
        ledger.reserve(cost, start + told_s)


def wait_told(ledger: Ledger, cost: int, now: float) -> float | None:
    """None: it was let in; infinite: it can never be."""
    try:
        ledger.reserve(cost, now)
    except RateLimited as refused:
        return math.inf if refused.retry_after_s is None else refused.retry_after_s
    return None


def ledger_takes(ledger: Ledger, cost: int, now: float) -> bool:
    return wait_told(ledger, cost, now) is None


def test_unlimited_kinds_are_not_told_of() -> None:
    ledger = Ledger(TenantLimits(max_concurrent_requests=2))
    ledger.reserve(10**9, 0.0)
    standing = ledger.standing(0.0)
    assert (standing.requests, standing.tokens, standing.concurrency) == (None, None, Places(2, 1))


def test_what_was_not_used_comes_back_and_what_was_used_beyond_is_owed() -> None:
    ledger = Ledger(TenantLimits(tokens_per_minute=600))
    ledger.reserve(400, 0.0)
    assert tokens_left(ledger, 0.0) == 200
    ledger.settle(400, 100, 0.0)
    assert tokens_left(ledger, 0.0) == 500
    ledger.reserve(500, 0.0)
    ledger.settle(500, 800, 0.0)
    assert tokens_left(ledger, 0.0) == 0
    with pytest.raises(TokensLimited) as refused:
        ledger.reserve(1, 0.0)
    assert refused.value.retry_after_s == pytest.approx(30.1)  # 300 of debt and one more, at 10 a second
    assert refused.value.standing is not None
    assert refused.value.standing.tokens is not None
    assert refused.value.standing.tokens.reset_s == pytest.approx(90.0)
    ledger.reserve(1, 30.1)


def tokens_left(ledger: Ledger, now: float) -> int:
    tokens = ledger.standing(now).tokens
    assert tokens is not None
    return tokens.remaining


def test_a_refused_request_takes_nothing_of_any_limit() -> None:
    ledger = Ledger(TenantLimits(requests_per_minute=10, tokens_per_minute=100, max_concurrent_requests=3))
    ledger.reserve(90, 0.0)
    with pytest.raises(TokensLimited):
        ledger.reserve(20, 0.0)
    standing = ledger.standing(0.0)
    assert standing.requests is not None
    assert (standing.requests.remaining, tokens_left(ledger, 0.0)) == (9, 10)
    assert standing.concurrency == Places(3, 2)


def test_undoing_leaves_no_trace() -> None:
    ledger = Ledger(TenantLimits(requests_per_minute=10, tokens_per_minute=100, max_concurrent_requests=3))
    before = ledger.standing(0.0)
    ledger.reserve(90, 0.0)
    assert ledger.standing(0.0) != before
    ledger.undo(90, 0.0)
    assert ledger.standing(0.0) == before


def test_the_limit_that_lasts_longest_is_named() -> None:
    ledger = Ledger(TenantLimits(requests_per_minute=60, tokens_per_minute=60))
    ledger.reserve(60, 0.0)
    with pytest.raises(TokensLimited, match="60 tokens per minute"):
        ledger.reserve(30, 0.0)
    for _ in range(59):
        ledger.reserve(0, 0.0)
    with pytest.raises(RequestsLimited, match="60 requests per minute"):
        ledger.reserve(0, 0.0)


def test_a_request_above_the_limit_is_told_that_it_can_never_pass() -> None:
    ledger = Ledger(TenantLimits(tokens_per_minute=100))
    with pytest.raises(NeverWithinLimit, match="101 tokens") as refused:
        ledger.reserve(101, 0.0)
    assert refused.value.retry_after_s is None
    ledger.reserve(100, 0.0)


def test_those_refused_together_get_places_one_after_another() -> None:
    ledger = Ledger(TenantLimits(requests_per_minute=60))
    for _ in range(60):
        ledger.reserve(1, 0.0)
    told = []
    for _ in range(5):
        with pytest.raises(RequestsLimited) as refused:
            ledger.reserve(1, 0.0)
        told.append(refused.value.retry_after_s)
    assert told == [pytest.approx(k) for k in (1.0, 2.0, 3.0, 4.0, 5.0)]


def test_the_wait_for_a_place_is_what_requests_have_lately_taken() -> None:
    """Two places; requests end every 3 s while both are taken."""
    ledger = Ledger(TenantLimits(max_concurrent_requests=2))
    now = 0.0
    ledger.reserve(1, now)
    ledger.reserve(1, now)
    for _ in range(20):
        now += 3.0
        ledger.settle(1, 1, now)
        ledger.reserve(1, now)
    with pytest.raises(ConcurrencyLimited, match="2 requests at once") as refused:
        ledger.reserve(1, now)
    assert refused.value.retry_after_s == pytest.approx(3.0, rel=0.1)


@given(st.integers(1, 10**7), st.floats(0, 1e6), st.integers(0, 50))
def test_what_is_told_as_remaining_can_be_taken_at_once(limit: int, start: float, num_taken: int) -> None:
    ledger = Ledger(TenantLimits(tokens_per_minute=limit))
    for _ in range(num_taken):
        ledger_takes(ledger, max(1, limit // 40), start)
    now = start + 1.2345
    window = ledger.standing(now).tokens
    assert window is not None
    assert 0 <= window.remaining <= limit
    ledger.reserve(window.remaining, now)
    if window.remaining < limit:
        assert not ledger_takes(ledger, 2, now)
        assert window.reset_s > 0
        full = ledger_at_rest(limit, start, num_taken, now + window.reset_s)
        assert full >= limit - 1  # instants are rounded as well


def ledger_at_rest(limit: int, start: float, num_taken: int, now: float) -> int:
    ledger = Ledger(TenantLimits(tokens_per_minute=limit))
    for _ in range(num_taken):
        ledger_takes(ledger, max(1, limit // 40), start)
    return tokens_left(ledger, now)


def test_a_minute_boundary_is_no_boundary() -> None:
    ledger = Ledger(TenantLimits(requests_per_minute=60))
    first = sum(ledger_takes(ledger, 1, 59.5) for _ in range(60))
    second = sum(ledger_takes(ledger, 1, 60.5) for _ in range(60))
    assert (first, second) == (60, 1)
