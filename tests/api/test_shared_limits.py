"""Servers that share tenants' limits in a real Redis, and what their clients meet when it goes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import openai
import orjson
import pytest

from llm_runtime.core.errors import ConfigError
from tests.support.http import Connection, Reply, ask, chat_body, connected, get, post
from tests.support.redis_server import RedisServer, needs_redis, redis_server
from tests.support.scripted import MODEL, ScriptedBackend
from tests.support.server import MOCK, Served, serve
from tests.support.tenants import ANN, BOB, ann, bearer, bob, tenants, told

pytestmark = needs_redis

PATIENCE_S = 20.0
TIMEOUT_S = 0.5
INSTANT = {**MOCK, "engines.mock.prefill_latency_ms": "0", "engines.mock.decode_latency_ms": "0"}


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server() as running:
        yield running


def shared(redis: RedisServer, when_gone: str = "closed", **limits: int) -> dict[str, str]:
    return {
        **INSTANT,
        **tenants(ann=ann(limits=limits), bob=bob()),
        "admission.redis.url": redis.url,
        "admission.redis.timeout_ms": str(TIMEOUT_S * 1000),
        "admission.redis.when_gone": when_gone,
    }


def brief(key: str = ANN, model: str = "mock") -> bytes:
    return post(chat_body(model, max_tokens=1), headers=bearer(key))


async def until_shared(server: Served, shared: bool) -> None:
    line = f"\nllm_runtime_tenant_limits_shared {int(shared)}\n"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            text = (await get(server.port, "/metrics?format=prometheus", bearer(BOB))).body.decode()
            if line in text:
                return


async def test_two_servers_together_grant_the_limit_and_not_one_more(redis: RedisServer) -> None:
    settings = shared(redis, requests_per_minute=12)
    async with serve(settings) as one, serve(settings) as two:
        for server in (one, two):
            await until_shared(server, True)
        replies = await asyncio.gather(
            *(ask(server.port, brief()) for _ in range(40) for server in (one, two))
        )
        assert Counter(reply.status for reply in replies) == {200: 12, 429: 68}
        assert {told(reply)["limit-requests"] for reply in replies} == {"12"}
        lefts = sorted(int(told(reply)["remaining-requests"]) for reply in replies if reply.status == 200)
        assert lefts == list(range(12)), "each place was given once"
        assert (await ask(one.port, brief(BOB))).status == 200


async def test_the_official_client_meets_the_limit_of_all_servers(redis: RedisServer) -> None:
    settings = shared(redis, requests_per_minute=1, tokens_per_minute=1000)
    async with serve(settings) as one, serve(settings) as two:
        for server in (one, two):
            await until_shared(server, True)
        assert (await ask(one.port, brief())).status == 200
        async with openai.AsyncOpenAI(base_url=f"{two.base_url}/v1", api_key=ANN, max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(
                    model="mock", messages=[{"role": "user", "content": "hi"}], max_tokens=1
                )
        headers = refused.value.response.headers
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert 55_000 < int(headers["retry-after-ms"]) <= 60_000


async def test_a_client_that_asks_again_at_once_is_not_refused_its_own_place(redis: RedisServer) -> None:
    async with serve(shared(redis, max_concurrent_requests=1)) as server, connected(server.port) as client:
        await until_shared(server, True)
        for _ in range(100):
            await client.send(brief())
            reply = await client.reply()
            assert (reply.status, told(reply)["remaining-concurrency"]) == (200, "0")


async def test_one_name_for_two_requests_at_the_same_time(redis: RedisServer) -> None:
    async with serve(shared(redis, requests_per_minute=100)) as server:
        await until_shared(server, True)
        named = post(chat_body("mock", max_tokens=1), headers=bearer(ANN, **{"x-request-id": "same"}))
        replies = await asyncio.gather(*(ask(server.port, named) for _ in range(20)))
        assert {reply.status for reply in replies} == {200}


async def test_who_leaves_gives_back_to_all(redis: RedisServer) -> None:
    settings = shared(redis, tokens_per_minute=600, max_concurrent_requests=3)
    backend = ScriptedBackend()
    async with serve(settings, backend=backend) as one, serve(settings) as two:
        for server in (one, two):
            await until_shared(server, True)
        leaving = await Connection.open(one.port)
        request = post(chat_body(MODEL, max_tokens=500, stream=True), headers=bearer(ANN))
        await leaving.send(request)
        (await backend.got(0)).say(*"abc")
        await leaving.head()
        look = brief(model="no-such-model")
        assert int(told(await ask(two.port, look))["remaining-tokens"]) < 150
        leaving.reset()
        await one.settled(1)
        async with asyncio.timeout(PATIENCE_S):
            while (says := told(await ask(two.port, look)))["remaining-concurrency"] != "3":
                pass
        assert int(says["remaining-tokens"]) > 560


@pytest.mark.parametrize(("when_gone", "status"), [("open", 200), ("closed", 503)])
async def test_redis_killed_under_load(
    redis: RedisServer, capfd: pytest.CaptureFixture[str], when_gone: str, status: int
) -> None:
    settings = {
        **shared(redis, when_gone, requests_per_minute=100_000, max_concurrent_requests=100),
        "admission.redis.timeout_ms": "5000",  # a connection that breaks is seen at once all the same
        "telemetry.log_level": "info",
        "telemetry.log_format": "json",
    }
    replies: list[tuple[float, Reply]] = []
    ended = asyncio.Event()

    async def load(server: Served) -> None:
        async with connected(server.port) as client:
            while not ended.is_set():
                began_at = time.monotonic()
                await client.send(brief())
                reply = await client.reply()
                replies.append((time.monotonic() - began_at, reply))

    async def seen(wanted: int, number: int) -> None:
        """Until so many more replies had that status."""
        first = len(replies)
        async with asyncio.timeout(PATIENCE_S):
            while sum(reply.status == wanted for _, reply in replies[first:]) < number:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async with serve(settings) as server, asyncio.TaskGroup() as group:
        await until_shared(server, True)
        for _ in range(4):
            group.create_task(load(server))
        await seen(200, 50)
        await redis.kill()
        await until_shared(server, False)
        await seen(status, 50)
        assert (await ask(server.port, brief(BOB))).status == 200, "who has no limits does not care"
        await redis.start()
        await until_shared(server, True)
        await seen(200, 50)
        ended.set()
    assert {reply.status for _, reply in replies} == {200, status}
    refused = [reply for _, reply in replies if reply.status == 503]
    assert all(reply.error["code"] == "limiter_unavailable" for reply in refused)
    assert all(reply.headers["retry-after"] == "1" for reply in refused)
    assert max(took_s for took_s, _ in replies) < 2
    out, err = capfd.readouterr()
    lines = [orjson.loads(line) for line in (out + err).splitlines() if line.startswith("{")]
    changes = [line for line in lines if line["event"].startswith("tenant_limits.")]
    assert [line["event"].rpartition("_")[2] for line in changes] == ["back", "gone", "back"], changes


async def test_a_password_in_the_url_is_seen_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    settings = {
        **INSTANT,
        **tenants(ann=ann(limits={"requests_per_minute": 5})),
        "admission.redis.url": "redis://user:REDISSECRET@127.0.0.1:1/0",
        "telemetry.log_level": "debug",
        "telemetry.log_format": "json",
    }
    async with serve(settings) as server:
        replies = [await ask(server.port, brief()) for _ in range(6)]
        assert [reply.status for reply in replies] == [200] * 5 + [429]
        pages = [await get(server.port, path, bearer(ANN)) for path in ("/metrics", "/load")]
    everything = "".join((*(page.body.decode() for page in pages), *capfd.readouterr()))
    assert "tenant_limits.redis_gone" in everything
    assert "REDISSECRET" not in everything


async def test_a_url_that_is_none_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"admission\.redis\.url"):
        async with serve({**INSTANT, "admission.redis.url": "ftp://127.0.0.1"}):
            pass
