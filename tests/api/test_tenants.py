"""Tenants from the outside: limits, what is told of them, ceilings, shares, deadlines."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import openai
import pytest

from llm_runtime.core.errors import BackendError
from tests.support.http import Connection, Reply, ask, chat_body, connected, get, post
from tests.support.scripted import MODEL, PROMPT_TOKENS, ScriptedBackend, ScriptedStream, answer
from tests.support.server import MOCK, Served, serve
from tests.support.tenants import ANN, BOB, ann, bearer, bob, seconds, tenants, told

SLOW = 600  # tokens a minute: ten a second, so that a test's own time hardly counts


def chat(key: str = ANN, model: str = MODEL, headers: dict[str, str] | None = None, **fields: Any) -> bytes:
    return post(chat_body(model, **fields), headers={**bearer(key), **(headers or {})})


def client_of(server: Served, key: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=key, **options)


async def remaining(server: Served, key: str = ANN) -> int:
    """Tokens, asked by a request that is wrong in itself and so takes nothing."""
    return int(told(await ask(server.port, chat(key, "no-such-model")))["remaining-tokens"])


def near(number: int, slack: int = 20) -> Any:
    return pytest.approx(number, abs=slack)


# ---- the official client


async def test_the_official_client_is_refused_and_told_everything() -> None:
    limits = {"requests_per_minute": 2, "tokens_per_minute": 100_000}
    async with (
        serve({**MOCK, **tenants(ann=ann(limits=limits))}) as server,
        client_of(server, ANN, max_retries=0) as client,
    ):
        create = client.chat.completions.with_raw_response.create
        messages: Any = chat_body("mock")["messages"]
        for left in (1, 0):
            reply = await create(model="mock", messages=messages, max_tokens=3)
            assert reply.headers["x-ratelimit-limit-requests"] == "2"
            assert reply.headers["x-ratelimit-remaining-requests"] == str(left)
            assert 0 < seconds(reply.headers["x-ratelimit-reset-requests"]) <= 60
            assert reply.headers["x-ratelimit-limit-tokens"] == "100000"
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model="mock", messages=messages, max_tokens=3)
        headers = refused.value.response.headers
        assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "requests")
        assert "2 requests per minute" in refused.value.message
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert int(headers["x-ratelimit-remaining-tokens"]) > 99_000
        assert 25_000 < int(headers["retry-after-ms"]) <= 30_000
        assert int(headers["retry-after"]) == -(-int(headers["retry-after-ms"]) // 1000)
        metrics = (await get(server.port, "/metrics?format=prometheus", bearer(ANN))).body.decode()
        assert 'llm_runtime_tenant_limit_rejections_total{tenant="ann",limit="requests"} 1' in metrics


async def test_its_own_retries_are_enough_because_the_wait_is_true() -> None:
    async with (
        serve({**MOCK, **tenants(ann=ann(limits={"requests_per_minute": 120}))}) as server,
        client_of(server, ANN, max_retries=1) as client,
    ):
        messages: Any = chat_body("mock")["messages"]
        await asyncio.gather(*(ask(server.port, chat(model="mock", max_tokens=1)) for _ in range(119)))
        for _ in range(3):
            await client.chat.completions.create(model="mock", messages=messages, max_tokens=1)


# ---- every reply


async def test_every_reply_to_a_limited_tenant_says_how_it_stands() -> None:
    def play(engine: ScriptedStream) -> None:
        if engine.request.body.get("user") == "fail":
            engine.fail(BackendError("it broke"))
        elif engine.request.body.get("user") != "hold":
            engine.say("a")
            engine.end()

    limits = {"requests_per_minute": 10, "tokens_per_minute": 100_000, "max_concurrent_requests": 2}
    settings = {**MOCK, **tenants(ann=ann(limits=limits), bob=bob()), "admission.max_queue_size": "0"}
    backend = ScriptedBackend(slots=1, on_open=play)
    async with serve(settings, backend=backend) as server, connected(server.port) as held:
        kinds = {
            "limit-requests", "remaining-requests", "reset-requests",
            "limit-tokens", "remaining-tokens", "reset-tokens", "limit-concurrency", "remaining-concurrency",
        }  # fmt: skip

        async def reply(expected: int, left: int, key: str = ANN, **fields: Any) -> Reply:
            got = await ask(server.port, chat(key, **fields))
            assert got.status == expected
            says = told(got)
            if key == ANN:
                assert set(says) == kinds
                assert says["remaining-requests"] == str(left)
            else:
                assert not says
            return got

        await reply(200, 9)
        await reply(200, 8, stream=True)
        await reply(400, 8, temperature=9)
        await reply(404, 8, model="nobody")
        await reply(502, 7, user="fail")
        await reply(502, 6, user="fail", stream=True)
        await reply(200, 0, key=BOB)
        await reply(400, 0, key=BOB, temperature=9)
        num_before = len(backend.streams)
        await held.send(chat(user="hold"))
        await backend.got(num_before)
        full = await reply(503, 5)
        assert full.error["code"] == "queue_full"
        assert told(full)["remaining-concurrency"] == "1"
        wrong = await ask(server.port, post(chat_body(MODEL), headers=bearer("sk-nobody")))
        assert (wrong.status, told(wrong)) == (401, {})
        backend.streams[-1].end()
        assert (await held.reply()).status == 200


async def test_other_apis_are_limited_and_told_alike() -> None:
    settings = {**MOCK, **tenants(ann=ann(limits={"requests_per_minute": 3}))}
    async with serve(settings) as server:
        bodies = {
            "/v1/completions": {"model": "mock", "prompt": "hi", "max_tokens": 1},
            "/v1/responses": {"model": "mock", "input": "hi", "max_output_tokens": 1},
            "/v1/messages": {
                "model": "mock", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]
            },
        }  # fmt: skip
        for left, (path, body) in zip((2, 1, 0), bodies.items(), strict=True):
            reply = await ask(server.port, post(body, path, bearer(ANN)))
            assert (reply.status, told(reply)["remaining-requests"]) == (200, str(left))
        for path, body in bodies.items():
            reply = await ask(server.port, post(body, path, bearer(ANN)))
            assert (reply.status, told(reply)["remaining-requests"]) == (429, "0")
            assert int(reply.headers["retry-after"]) >= 15


# ---- tokens


async def test_a_plain_and_a_streamed_reply_are_charged_what_they_used() -> None:
    settings = {**MOCK, **tenants(ann=ann(limits={"tokens_per_minute": SLOW}))}
    async with serve(settings, backend=ScriptedBackend(on_open=answer("a", "b", "c"))) as server:
        for count, stream in enumerate((False, True), start=1):
            reply = await ask(server.port, chat(max_tokens=300, stream=stream))
            assert 240 < int(told(reply)["remaining-tokens"]) < 360
            assert await remaining(server) == near(SLOW - count * (PROMPT_TOKENS + 3))


@pytest.mark.parametrize("way", [Connection.close, Connection.reset, Connection.half_close])
async def test_who_leaves_is_charged_what_was_made_until_then(way: Any) -> None:
    backend = ScriptedBackend()
    settings = {**MOCK, **tenants(ann=ann(limits={"tokens_per_minute": SLOW, "max_concurrent_requests": 1}))}
    async with serve(settings, backend=backend) as server:
        connection = await Connection.open(server.port)
        await connection.send(chat(max_tokens=500, stream=True))
        (await backend.got(0)).say(*"abcdefgh")
        await connection.head()
        await connection.chunk()
        while backend.streams[0].num_pulled < 8:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await remaining(server) < 150
        way(connection)
        await server.settled(1)
        assert await remaining(server) == near(SLOW - PROMPT_TOKENS - 8)
        says = told(await ask(server.port, chat(model="no-such-model")))
        assert says["remaining-concurrency"] == "1"
        connection.close()


async def test_who_leaves_the_queue_is_charged_nothing_and_who_leaves_a_prompt_its_prompt() -> None:
    backend = ScriptedBackend(slots=1)
    settings = {**MOCK, **tenants(ann=ann(limits={"tokens_per_minute": SLOW}), bob=bob())}
    async with serve(settings, backend=backend) as server, connected(server.port) as other:
        first = await Connection.open(server.port)
        await first.send(chat(max_tokens=250))
        await backend.got(0)
        second = await Connection.open(server.port)
        await second.send(chat(max_tokens=250))
        await server.accepted(2)
        assert await remaining(server) < 120
        second.close()
        await server.settled(1)
        assert await remaining(server) == near(SLOW - 250)
        first.close()
        await server.settled(2)
        assert await remaining(server) == near(SLOW - PROMPT_TOKENS)
        backend.streams[0].confirm_cancel()
        await other.send(chat(BOB))
        (await backend.got(1)).end()
        assert (await other.reply()).status == 200


async def test_what_an_engine_failed_at_is_free() -> None:
    def fail(engine: ScriptedStream) -> None:
        engine.fail(BackendError("it broke"))

    settings = {**MOCK, **tenants(ann=ann(limits={"tokens_per_minute": SLOW}))}
    async with serve(settings, backend=ScriptedBackend(on_open=fail)) as server:
        assert (await ask(server.port, chat(max_tokens=300))).status == 502
        assert await remaining(server) == near(SLOW)


async def test_a_request_above_the_limit_is_told_not_to_come_back() -> None:
    settings = {**MOCK, **tenants(ann=ann(limits={"tokens_per_minute": 100}))}
    async with serve(settings) as server:
        reply = await ask(server.port, chat(model="mock", max_tokens=400))
        assert (reply.status, reply.error["code"]) == (429, "request_exceeds_rate_limit")
        assert reply.headers["x-should-retry"] == "false"
        assert "retry-after" not in reply.headers


# ---- requests at once


async def test_places_are_held_until_the_end_and_then_free_at_once() -> None:
    backend = ScriptedBackend()
    settings = {**MOCK, **tenants(ann=ann(limits={"max_concurrent_requests": 2}), bob=bob())}
    async with serve(settings, backend=backend) as server:
        async with connected(server.port) as one, connected(server.port) as two:
            await one.send(chat())
            await two.send(chat(stream=True))
            await backend.got(1)
            refused = await ask(server.port, chat())
            assert (refused.status, refused.error["type"]) == (429, "concurrent_requests")
            assert refused.error["code"] == "rate_limit_exceeded"
            assert int(refused.headers["retry-after-ms"]) >= 1
            assert told(refused) == {"limit-concurrency": "2", "remaining-concurrency": "0"}
            backend.streams[0].end()
            assert (await one.reply()).status == 200
            # A client that asks again as soon as it has its answer is not refused.
            for number in range(2, 20):
                await one.send(chat())
                (await backend.got(number)).end()
                assert (await one.reply()).status == 200
            backend.streams[1].end()
            await two.streamed()
        async with connected(server.port) as other:
            await other.send(chat(BOB))
            (await backend.got(20)).end()
            assert (await other.reply()).status == 200


# ---- what else is declared


@pytest.mark.parametrize(
    ("ceiling", "asked", "got"),
    [("interactive", 0, 0), ("standard", 0, 4), ("standard", None, 5), ("standard", 8, 8), ("batch", 5, 7),
     ("batch", None, 7), ("batch", 9, 9)],
)  # fmt: skip
async def test_the_ceiling_wins(ceiling: str, asked: int | None, got: int) -> None:
    backend = ScriptedBackend(on_open=answer("a"))
    settings = {**MOCK, **tenants(ann=ann(ceiling=ceiling))}
    fields: dict[str, Any] = {} if asked is None else {"priority": asked}
    async with serve(settings, backend=backend) as server:
        assert (await ask(server.port, chat(**fields))).status == 200
    assert backend.streams[0].request.priority == got


async def test_the_slo_becomes_the_limits_of_time() -> None:
    backend = ScriptedBackend(on_open=answer("a"))
    settings = {**MOCK, **tenants(ann=ann(slo={"first_token_s": 2, "total_s": 30}), bob=bob())}
    async with serve(settings, backend=backend) as server:
        hurry = {"x-stainless-read-timeout": "7"}
        for request in (chat(), chat(stream=True), chat(headers=hurry)):
            assert (await ask(server.port, request)).status == 200
        assert (await ask(server.port, chat(BOB, stream=True))).status == 200
    plain, stream, hurried, other = (engine.request.limits for engine in backend.streams)
    assert (plain.request_s, plain.total_s) == (30, None)
    assert (stream.request_s, stream.total_s) == (2, 30)
    assert hurried.request_s == 7
    assert (other.request_s, other.total_s) == (120, None)


async def test_an_slo_that_is_missed_ends_the_request() -> None:
    settings = {**MOCK, **tenants(ann=ann(slo={"first_token_s": 0.05}))}
    async with serve(settings, backend=ScriptedBackend()) as server:
        began_at = time.monotonic()
        reply = await ask(server.port, chat(stream=True))
        assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
        assert time.monotonic() - began_at < 2


async def test_weights_decide_the_shares() -> None:
    """Of what waits behind one slot: three of one tenant for each of the other."""
    backend = ScriptedBackend(slots=1)
    settings = {
        **MOCK,
        **tenants(ann=ann(weight=3), bob=bob(weight=1)),
        "scheduling.policy": "fair",
        "scheduling.fair_credit_tokens": "0",
    }
    async with serve(settings, backend=backend) as server:
        connections = [await Connection.open(server.port) for _ in range(25)]
        for number, connection in enumerate(connections):
            await connection.send(chat(ANN if number % 2 else BOB, max_tokens=10))
            await server.accepted(number + 1)
        for number in range(25):
            engine = await backend.got(number)
            engine.say(*"abcdefghij")
            engine.end()
        for connection in connections:
            assert (await connection.reply()).status == 200
            connection.close()
    first = Counter(engine.request.tenant for engine in backend.streams[1:13])
    assert first["ann"] in (8, 9, 10)  # one of the other's ran before any of these came


async def test_without_any_key_tenants_are_known_by_their_header() -> None:
    settings = {**MOCK, **tenants(team={"limits": {"requests_per_minute": 1}})}
    async with serve(settings) as server:
        named = post(chat_body("mock", max_tokens=1), headers={"x-tenant-id": "team"})
        statuses = [(await ask(server.port, named)).status for _ in range(2)]
        assert statuses == [200, 429]
        reply = await ask(server.port, post(chat_body("mock", max_tokens=1)))
        assert (reply.status, told(reply)) == (200, {})


async def test_keys_of_tenants_are_seen_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    admin = "sk-ADMINSECRET0003"
    settings = {
        **MOCK,
        **tenants(ann=ann(limits={"requests_per_minute": 2}), bob=bob()),
        "server.admin_api_keys": admin,
        "telemetry.log_level": "debug",
        "telemetry.log_format": "json",
    }
    seen = []
    async with serve(settings) as server:
        for _ in range(3):
            reply = await ask(server.port, chat(model="mock", max_tokens=1))
            seen.append(f"{reply.headers}{reply.body.decode()}")
        for path, key in (
            ("/metrics", ANN), ("/metrics?format=prometheus", BOB), ("/load", BOB), ("/admin/queue", admin),
            ("/admin/queue", ANN), ("/openapi.json", BOB),
        ):  # fmt: skip
            seen.append((await get(server.port, path, bearer(key))).body.decode())
    everything = "\n".join((*seen, *capfd.readouterr()))
    assert "SECRET" not in everything
    assert '"tenant":"ann"' in everything
