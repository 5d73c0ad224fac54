"""Tenants' limits in a real Redis: shared exactly, and survived by everything that can happen to it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator, MutableSequence, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog
from redis.asyncio import Redis
from structlog.testing import capture_logs
from structlog.typing import EventDict

from llm_runtime.admission.config import AdmissionConfig, RedisConfig, TenantLimits
from llm_runtime.admission.limiter import build_limiter, secrets_of
from llm_runtime.admission.redis_limits import RedisLimits
from llm_runtime.admission.tenant_limits import Hold, Ledger, TenantLimiter
from llm_runtime.core.errors import ConcurrencyLimited, ConfigError, LimiterUnavailable, RateLimited
from llm_runtime.core.standing import Places
from tests.admission.limiter_conformance import LimiterConformance, looked, now, take, tokens_left
from tests.support.redis_server import RedisServer, needs_redis, redis_server

pytestmark = needs_redis

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 20.0
TIMEOUT_MS = 2000.0


@asynccontextmanager
async def limiter_on(
    url: str,
    *,
    when_gone: Literal["open", "closed"] = "closed",
    lease_s: float = 15.0,
    timeout_ms: float = TIMEOUT_MS,
    connected: bool = True,
) -> AsyncIterator[RedisLimits]:
    config = RedisConfig(url=url, when_gone=when_gone, lease_s=lease_s, timeout_ms=timeout_ms)
    limiter = RedisLimits(config)
    task = asyncio.create_task(limiter.run())
    try:
        if connected:
            await until_shared(limiter, True)
        yield limiter
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until_shared(limiter: RedisLimits, shared: bool) -> None:
    """Each turn of the loop looks again: the seam has no event for it, since nobody waits for it."""
    async with asyncio.timeout(PATIENCE_S):
        while limiter.shared is not shared:  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as running:
        yield running


class TestRedisLimits(LimiterConformance):
    @pytest.fixture
    async def limiter(self, server: RedisServer) -> AsyncIterator[TenantLimiter]:
        async with limiter_on(server.url) as limiter:
            yield limiter


@pytest.mark.parametrize("seed", range(5))
async def test_the_scripts_and_the_arithmetic_in_process_agree(server: RedisServer, seed: int) -> None:
    """Rates are so low, and numbers so round, that the few seconds it takes decide nothing."""
    chance = random.Random(seed)
    limits = TenantLimits(requests_per_minute=7, tokens_per_minute=1200, max_concurrent_requests=3)
    ledger, running = Ledger(limits), list[tuple[Hold, int]]()
    refused: Counter[type[RateLimited]] = Counter()
    async with limiter_on(server.url) as limiter:
        for _ in range(200):
            if running and chance.random() < 0.4:
                hold, reserved = running.pop(chance.randrange(len(running)))
                if chance.random() < 0.7:
                    limiter.undo(hold, limits, now())
                    ledger.undo(reserved, now())
                else:
                    used = 100 * chance.randrange(reserved // 100 + 2)
                    limiter.settle(hold, limits, used, now())
                    ledger.settle(reserved, used, now())
            else:
                tokens = chance.choice((100, 100, 200, 1300))
                expected, got = refusal_of_ledger(ledger, tokens), await tried(limiter, limits, tokens)
                if isinstance(got, Hold):
                    running.append((got, tokens))
                    assert expected is None
                else:
                    assert type(got) is expected
                    refused[type(got)] += 1
            theirs, ours = await looked(limiter, limits), ledger.standing(now())
            assert theirs.concurrency == ours.concurrency
            assert theirs.requests is not None
            assert ours.requests is not None
            assert theirs.requests.reset_s == pytest.approx(ours.requests.reset_s, abs=1)
            assert theirs.tokens is not None
            assert ours.tokens is not None
            assert theirs.tokens.reset_s == pytest.approx(ours.tokens.reset_s, abs=1)
    assert len(refused) >= 3, "the limits were met"


def refusal_of_ledger(ledger: Ledger, tokens: int) -> type[RateLimited] | None:
    try:
        ledger.reserve(tokens, now())
    except RateLimited as refused:
        return type(refused)
    return None


async def tried(limiter: RedisLimits, limits: TenantLimits, tokens: int) -> Hold | RateLimited:
    try:
        return await take(limiter, limits, tokens)
    except RateLimited as refused:
        return refused


# ---- several processes


@asynccontextmanager
async def takers(number: int, *arguments: object) -> AsyncIterator[Sequence[Process]]:
    command = (sys.executable, "-m", "tests.admission.programs.taker", *map(str, arguments))
    processes = [
        await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
        for _ in range(number)
    ]
    try:
        for process in processes:
            assert await heard(process) == "ready"
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def heard(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return (await process.stdout.readline()).decode().strip()


async def tell(process: Process, word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n".encode())
    await process.stdin.drain()


async def test_processes_together_get_the_limit_and_not_one_more(server: RedisServer) -> None:
    per_minute, seconds = 120, 2.0
    async with takers(3, server.url, per_minute, 0, 15) as processes:
        began_at = time.monotonic()
        await asyncio.gather(*(tell(process, str(seconds)) for process in processes))
        numbers = [int(await heard(process)) for process in processes]
        took_s = time.monotonic() - began_at
    per_second = per_minute / 60
    assert per_minute + per_second <= sum(numbers) <= per_minute + took_s * per_second + 1


async def test_places_of_a_killed_process_come_back_and_of_a_living_one_do_not(server: RedisServer) -> None:
    lease_s = 1.0
    limits = TenantLimits(max_concurrent_requests=2)
    async with (
        takers(2, server.url, 0, 2, lease_s) as (victim, survivor),
        limiter_on(server.url, lease_s=lease_s) as limiter,
    ):
        for process in (victim, survivor):
            await tell(process, "hold")
            assert await heard(process) == "held"
        # Longer than a lease: both live, so both keep their places.
        ends_at = time.monotonic() + 2 * lease_s
        while time.monotonic() < ends_at:
            with pytest.raises(ConcurrencyLimited):
                await take(limiter, limits)
            await asyncio.sleep(lease_s / 10)
        victim.kill()
        killed_at = time.monotonic()
        while (await looked(limiter, limits)).concurrency == Places(2, 0):
            assert time.monotonic() < killed_at + 3 * lease_s
            await asyncio.sleep(lease_s / 20)
        assert time.monotonic() - killed_at <= lease_s + 0.5
        await take(limiter, limits)
        with pytest.raises(ConcurrencyLimited):
            await take(limiter, limits)


async def test_a_process_that_ends_gives_back_at_once(server: RedisServer) -> None:
    limits = TenantLimits(requests_per_minute=10, max_concurrent_requests=1)
    async with limiter_on(server.url, lease_s=60) as first:
        hold = await take(first, limits)
        first.settle(hold, limits, 0, now())  # and leaves in the same step
    async with limiter_on(server.url, lease_s=60) as second:
        standing = await looked(second, limits)
        assert standing.concurrency == Places(1, 1)
        assert standing.requests is not None
        assert standing.requests.remaining == 9


# ---- Redis gone


async def test_closed_refuses_at_once_and_is_exact_again_when_redis_is_back(server: RedisServer) -> None:
    limits = TenantLimits(requests_per_minute=3, max_concurrent_requests=5)
    async with limiter_on(server.url, when_gone="closed") as limiter:
        hold = await take(limiter, limits)
        await server.kill()
        for _ in range(20):
            began_at = time.monotonic()
            with pytest.raises(LimiterUnavailable) as refused:
                await take(limiter, limits)
            assert time.monotonic() - began_at < 0.5
            assert refused.value.retry_after_s == 1.0
        assert await limiter.standing("a", limits, now()) is None
        await server.start()
        await until_shared(limiter, True)
        # It has forgotten what was taken, but not who is still running.
        standing = await looked(limiter, limits)
        assert standing.requests is not None
        assert standing.requests.remaining == 3
        assert standing.concurrency == Places(5, 4)
        limiter.settle(hold, limits, 0, now())
        assert (await looked(limiter, limits)).concurrency == Places(5, 5)


async def test_open_goes_on_with_limits_of_this_process(server: RedisServer) -> None:
    limits = TenantLimits(requests_per_minute=3)
    async with limiter_on(server.url, when_gone="open") as limiter:
        for _ in range(3):
            await take(limiter, limits)
        await server.kill()
        results = await asyncio.gather(*(take(limiter, limits) for _ in range(10)), return_exceptions=True)
        holds = [result for result in results if isinstance(result, Hold)]
        assert len(holds) == 3
        assert all(hold.by_itself for hold in holds)
        assert sum(isinstance(result, RateLimited) for result in results) == 7
        standing = await looked(limiter, limits)
        assert standing.requests is not None
        assert standing.requests.remaining == 0
        for hold in holds:
            limiter.settle(hold, limits, 0, now())


async def test_a_redis_that_hangs_makes_no_request_slow_and_loses_nothing(server: RedisServer) -> None:
    limits = TenantLimits(requests_per_minute=100, tokens_per_minute=10_000, max_concurrent_requests=9)
    async with limiter_on(server.url, timeout_ms=250) as limiter:
        before = await take(limiter, limits, 1000)
        server.pause()
        began_at = time.monotonic()
        results = await asyncio.gather(*(take(limiter, limits) for _ in range(5)), return_exceptions=True)
        assert time.monotonic() - began_at < 2 * 0.25 + 0.7
        assert all(isinstance(result, LimiterUnavailable) for result in results)
        began_at = time.monotonic()
        with pytest.raises(LimiterUnavailable):
            await take(limiter, limits)
        assert time.monotonic() - began_at < 0.2, "it is known to be gone"
        limiter.settle(before, limits, 400, now())
        server.resume()
        await until_shared(limiter, True)
        # What was asked while it hung may have been done; it was undone. What was told is done, once.
        async with asyncio.timeout(PATIENCE_S):
            while (standing := await looked(limiter, limits)).concurrency != Places(9, 9):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert standing.requests is not None
        assert standing.requests.remaining in (99, 100)
        assert 9600 <= await tokens_left(limiter, limits) <= 10_000
        after = await take(limiter, limits, 50)
        assert after.standing.concurrency == Places(9, 8)


@pytest.fixture
def lines() -> Iterator[MutableSequence[EventDict]]:
    """What is logged, whatever other tests have made of logging."""
    configured = structlog.get_config()
    structlog.reset_defaults()
    try:
        with capture_logs() as captured:
            yield captured
    finally:
        structlog.configure(**configured)


async def test_each_change_is_logged_once(server: RedisServer, lines: MutableSequence[EventDict]) -> None:
    limits = TenantLimits(requests_per_minute=100)
    async with limiter_on(server.url, when_gone="open") as limiter:
        for _ in range(2):
            await server.kill()
            for _ in range(30):
                await take(limiter, limits)
                await asyncio.sleep(0.01)
            assert not limiter.shared
            await server.start()
            await until_shared(limiter, True)
            await take(limiter, limits)
    told = [line for line in lines if line["event"].startswith("tenant_limits.")]
    assert [line["event"].rpartition("_")[2] for line in told] == ["back", "gone", "back", "gone", "back"]
    assert [line["log_level"] for line in told] == ["info", "warning", "info", "warning", "info"]
    assert told[1]["when_gone"] == "open"


async def test_a_redis_that_is_not_there_yet(tmp_path: Path) -> None:
    limits = TenantLimits(requests_per_minute=100)
    async with (
        redis_server() as server,
        limiter_on(f"unix://{tmp_path}/none.sock", when_gone="closed", connected=False) as limiter,
    ):
        with pytest.raises(LimiterUnavailable):
            await take(limiter, limits)
        async with limiter_on(server.url) as other:
            await take(other, limits)


async def test_one_that_is_started_anew_or_forgets_its_scripts_is_no_trouble(server: RedisServer) -> None:
    limits = TenantLimits(requests_per_minute=100)
    async with limiter_on(server.url) as limiter, Redis.from_url(server.url) as redis:
        await take(limiter, limits)
        await redis.script_flush()
        hold = await take(limiter, limits)
        assert not hold.by_itself
        await redis.script_flush()
        limiter.settle(hold, limits, 0, now())
        standing = await looked(limiter, limits)
        assert standing.requests is not None
        assert standing.requests.remaining == 98


async def test_one_that_takes_no_writes_counts_as_gone(server: RedisServer) -> None:
    limits = TenantLimits(requests_per_minute=100)
    async with limiter_on(server.url) as limiter, Redis.from_url(server.url) as redis:
        await redis.config_set("min-replicas-to-write", 1)
        with pytest.raises(LimiterUnavailable):
            await take(limiter, limits)
        await until_shared(limiter, False)
        await redis.config_set("min-replicas-to-write", 0)
        await until_shared(limiter, True)
        await take(limiter, limits)


async def test_a_request_cancelled_while_asking_leaves_nothing_taken(server: RedisServer) -> None:
    limits = TenantLimits(tokens_per_minute=100, max_concurrent_requests=1)
    async with limiter_on(server.url) as limiter:
        for num_turns in range(6):
            asking = asyncio.ensure_future(take(limiter, limits, 100))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            if not asking.cancel():
                limiter.undo(await asking, limits, now())
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            assert (await looked(limiter, limits)).concurrency == Places(1, 1)
            assert await tokens_left(limiter, limits) == 100


async def test_nothing_of_a_tenant_stays_for_ever(server: RedisServer) -> None:
    limits = TenantLimits(requests_per_minute=10, tokens_per_minute=10, max_concurrent_requests=1)
    async with limiter_on(server.url) as limiter, Redis.from_url(server.url) as redis:
        await take(limiter, limits, 10)
        with pytest.raises(RateLimited):
            await take(limiter, limits, 1)
        keys: list[Any] = await redis.keys("*")
        assert len(keys) == 3
        for key in keys:
            assert key.startswith(b"llm-runtime:")
            assert 0 < await redis.ttl(key) <= 300


# ---- configuration


@pytest.mark.parametrize("url", ["127.0.0.1:6379", "http://127.0.0.1:6379", "redis://127.0.0.1:port"])
def test_a_url_that_is_none_is_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigError, match=r"admission\.redis\.url"):
        build_limiter(RedisConfig(url=url))


def test_the_password_in_the_url_is_a_secret() -> None:
    config = AdmissionConfig(redis=RedisConfig(url="redis://user:p%40ssword@127.0.0.1:6379/1"))
    assert set(secrets_of(config)) == {"user", "p@ssword"}
