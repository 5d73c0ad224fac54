"""What every keeper of tenants' limits must do, in real time: some keep it by a clock of their own."""

from __future__ import annotations

import asyncio
import time

import pytest

from llm_runtime.admission.config import TenantLimits
from llm_runtime.admission.tenant_limits import Hold, TenantLimiter
from llm_runtime.core.errors import (
    ConcurrencyLimited,
    NeverWithinLimit,
    RateLimited,
    RequestsLimited,
    TokensLimited,
)
from llm_runtime.core.standing import Places, Standing

now = time.monotonic


async def take(limiter: TenantLimiter, limits: TenantLimits, tokens: int = 1, tenant: str = "a") -> Hold:
    return await limiter.reserve(tenant, limits, tokens, now())


async def looked(limiter: TenantLimiter, limits: TenantLimits, tenant: str = "a") -> Standing:
    standing = await limiter.standing(tenant, limits, now())
    assert standing is not None
    return standing


async def tokens_left(limiter: TenantLimiter, limits: TenantLimits) -> int:
    tokens = (await looked(limiter, limits)).tokens
    assert tokens is not None
    return tokens.remaining


class LimiterConformance:
    """Subclasses give the fixture `limiter`: one that nobody has used."""

    async def test_exactly_the_limit_passes_at_once(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(requests_per_minute=10)
        results = await asyncio.gather(*(take(limiter, limits) for _ in range(100)), return_exceptions=True)
        assert sum(isinstance(result, Hold) for result in results) == 10
        assert sum(isinstance(result, RequestsLimited) for result in results) == 90

    async def test_remaining_counts_down_and_reset_up(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(requests_per_minute=5, tokens_per_minute=100, max_concurrent_requests=9)
        seen = []
        for _ in range(5):
            standing = (await take(limiter, limits, 20)).standing
            assert standing.requests is not None
            assert standing.tokens is not None
            assert standing.concurrency is not None
            seen.append(
                (standing.requests.remaining, standing.tokens.remaining, standing.concurrency.remaining)
            )
        assert seen == [(4, 80, 8), (3, 60, 7), (2, 40, 6), (1, 20, 5), (0, 0, 4)]
        assert standing.requests is not None
        assert standing.tokens is not None
        assert 58 < standing.requests.reset_s <= 60
        assert 58 < standing.tokens.reset_s <= 60

    async def test_who_comes_back_when_told_is_let_in(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(requests_per_minute=600, tokens_per_minute=6000)
        hold = await take(limiter, limits, 6000)
        limiter.settle(hold, limits, 6000, now())
        with pytest.raises(TokensLimited) as refused:
            await take(limiter, limits, 20)
        assert refused.value.retry_after_s is not None
        assert 0.15 < refused.value.retry_after_s <= 0.2
        await asyncio.sleep(refused.value.retry_after_s)
        await take(limiter, limits, 20)

    async def test_what_was_not_used_is_there_for_the_very_next(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(tokens_per_minute=100, max_concurrent_requests=1)
        for _ in range(20):
            hold = await take(limiter, limits, 80)
            limiter.settle(hold, limits, 1, now())
        assert await tokens_left(limiter, limits) in (80, 81)

    async def test_what_was_used_beyond_is_owed(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(tokens_per_minute=600)
        hold = await take(limiter, limits, 100)
        limiter.settle(hold, limits, 900, now())
        with pytest.raises(TokensLimited) as refused:
            await take(limiter, limits, 0)
        assert refused.value.retry_after_s == pytest.approx(30, abs=0.5)
        assert await tokens_left(limiter, limits) == 0

    async def test_undoing_gives_everything_back(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(requests_per_minute=1, tokens_per_minute=50, max_concurrent_requests=1)
        for _ in range(5):
            limiter.undo(await take(limiter, limits, 50), limits, now())
        standing = await looked(limiter, limits)
        assert standing.requests is not None
        assert (standing.requests.remaining, await tokens_left(limiter, limits)) == (1, 50)
        assert standing.concurrency == Places(1, 1)

    async def test_places_are_taken_and_given_back(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(max_concurrent_requests=3)
        holds = [await take(limiter, limits) for _ in range(3)]
        with pytest.raises(ConcurrencyLimited) as refused:
            await take(limiter, limits)
        assert refused.value.standing is not None
        assert refused.value.standing.concurrency == Places(3, 0)
        limiter.settle(holds[1], limits, 0, now())
        await take(limiter, limits)
        with pytest.raises(ConcurrencyLimited):
            await take(limiter, limits)

    async def test_a_refusal_takes_nothing(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(requests_per_minute=10, tokens_per_minute=100, max_concurrent_requests=3)
        await take(limiter, limits, 90)
        for _ in range(5):
            with pytest.raises(TokensLimited):
                await take(limiter, limits, 20)
        standing = await looked(limiter, limits)
        assert standing.requests is not None
        assert standing.tokens is not None
        assert standing.concurrency is not None
        assert standing.requests.remaining == 9
        assert standing.tokens.remaining in (10, 11)
        assert standing.concurrency.remaining == 2

    async def test_a_request_above_the_limit_can_never_pass(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(tokens_per_minute=100)
        with pytest.raises(NeverWithinLimit) as refused:
            await take(limiter, limits, 101)
        assert refused.value.retry_after_s is None
        await take(limiter, limits, 100)

    async def test_those_refused_together_are_spread(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(requests_per_minute=60)
        results = await asyncio.gather(*(take(limiter, limits) for _ in range(70)), return_exceptions=True)
        told = sorted(
            result.retry_after_s
            for result in results
            if isinstance(result, RateLimited) and result.retry_after_s is not None
        )
        assert told == [pytest.approx(1.0 + k, abs=0.2) for k in range(10)]

    async def test_tenants_do_not_see_each_other(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(requests_per_minute=1, max_concurrent_requests=1)
        await take(limiter, limits, tenant="a")
        await take(limiter, limits, tenant="b")
        for tenant in "ab":
            with pytest.raises(RateLimited):
                await take(limiter, limits, tenant=tenant)

    async def test_looking_takes_nothing(self, limiter: TenantLimiter) -> None:
        limits = TenantLimits(requests_per_minute=2, tokens_per_minute=7)
        for _ in range(10):
            standing = await looked(limiter, limits)
        assert standing.concurrency is None
        assert standing.requests is not None
        assert standing.tokens is not None
        assert (standing.requests.remaining, standing.requests.reset_s) == (2, 0.0)
        assert (standing.tokens.limit, standing.tokens.remaining) == (7, 7)
