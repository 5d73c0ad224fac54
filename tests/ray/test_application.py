"""The application on a real Ray cluster with the mock engine: the API is the one of a single process."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.ray.conftest import Bed
from tests.support.http import CHAT, Reply, Stream, ask, chat_body, connected, get, post

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="module")]

MODEL = "mock"


async def test_a_stream_is_what_it_is_without_ray(mock_bed: Bed) -> None:
    body = chat_body(
        MODEL, stream=True, max_tokens=7, ignore_eos=True, stream_options={"include_usage": True}
    )
    async with connected(mock_bed.port) as connection:
        await connection.send(post(body, headers={"x-request-id": "mine"}))
        head, stream = await connection.streamed()
    assert head.status == 200
    assert head.headers["x-request-id"] == "mine"
    assert "queue" in head.headers["server-timing"]
    assert stream.done
    assert stream.text
    usage = stream.chunks[-1]["usage"]
    assert usage["completion_tokens"] == 7
    assert usage["total_tokens"] == usage["prompt_tokens"] + 7
    assert stream.chunks[-2]["choices"][0]["finish_reason"] == "length"


async def test_a_plain_reply(mock_bed: Bed) -> None:
    reply = await ask(mock_bed.port, post(chat_body(MODEL, max_tokens=5, ignore_eos=True)))
    assert reply.status == 200
    assert reply.json()["usage"]["completion_tokens"] == 5
    assert reply.headers["x-request-id"].count(",") == 0


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (chat_body("other"), 404, "model_not_found"),
        (chat_body(MODEL, max_tokens=-1), 400, None),
        (b"{", 400, "invalid_json"),
        (chat_body(MODEL, n=3), 400, "too_many_sequences"),
        (chat_body(MODEL, logprobs=True), 400, "unsupported_parameter"),
    ],
)
async def test_errors_are_ours(mock_bed: Bed, body: object, status: int, code: str | None) -> None:
    reply = await ask(mock_bed.port, post(body))
    assert reply.status == status
    error = reply.error
    if code is not None:
        assert error["code"] == code


async def test_metrics_and_models_are_there(mock_bed: Bed) -> None:
    metrics = (await get(mock_bed.port, "/metrics")).json()
    assert metrics["request_count"] >= 1
    text = (await get(mock_bed.port, "/metrics?format=prometheus")).body
    assert b"ray-0" in text
    models = (await get(mock_bed.port, "/v1/models")).json()
    assert [model["id"] for model in models["data"]] == [MODEL]


async def test_both_engines_work_at_once(mock_bed: Bed) -> None:
    await mock_bed.until_ready(2)
    body = chat_body(MODEL, stream=True, max_tokens=40, ignore_eos=True)

    async def one() -> str:
        async with connected(mock_bed.port) as connection:
            await connection.send(post(body))
            head, stream = await connection.streamed()
        assert stream.done
        return head.headers["server-timing"]

    timings = await asyncio.gather(*(one() for _ in range(4)))
    used = Counter(timing.partition("replica;desc=")[2].partition(",")[0] for timing in timings)
    assert sorted(used.values()) == [2, 2], timings


async def test_a_flood_finds_no_reply_that_is_not_ours(mock_bed: Bed) -> None:
    """Four slots and four places to wait, two hundred requests at once."""
    body = post(chat_body(MODEL, max_tokens=20, ignore_eos=True))
    replies: list[Reply] = await asyncio.gather(*(ask(mock_bed.port, body) for _ in range(200)))
    statuses = Counter(reply.status for reply in replies)
    assert set(statuses) == {200, 503}, statuses
    assert statuses[200] >= 8
    for reply in replies:
        if reply.status == 503:
            assert reply.error["code"] == "queue_full"
            assert int(reply.headers["retry-after"]) >= 1
            assert float(reply.headers["retry-after-ms"]) > 0
        else:
            assert reply.json()["usage"]["completion_tokens"] == 20
    await mock_bed.at_rest()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_who_leaves_frees_the_slot(mock_bed: Bed, how: str) -> None:
    body = chat_body(MODEL, stream=True, max_tokens=6000, ignore_eos=True)
    async with connected(mock_bed.port) as connection:
        await connection.send(post(body))
        head, stream = await connection.head(), Stream()
        assert head.status == 200
        await connection.event(stream)
        assert any(taken for _, taken in (await mock_bed.engines()).values())
        getattr(connection, how)()
    await asyncio.wait_for(mock_bed.at_rest(), 10.0)  # a minute of tokens would have been left
    metrics = (await get(mock_bed.port, "/metrics")).json()
    assert metrics["active_requests"] == 0


async def test_a_client_that_says_how_long_it_waits_is_told_in_time(mock_bed: Bed) -> None:
    """The queue is filled first, so that the request's time passes while it waits."""
    long = chat_body(MODEL, stream=True, max_tokens=400, ignore_eos=True)
    connections = []
    try:
        for _ in range(4):
            context = connected(mock_bed.port)
            connection = await context.__aenter__()
            connections.append(context)
            await connection.send(post(long))
            await connection.head()
        reply = await ask(
            mock_bed.port,
            post(chat_body(MODEL), CHAT, {"x-stainless-read-timeout": "0.5"}),
        )
        assert reply.status in (503, 504)
        assert reply.error["code"] in ("queue_timeout", "would_miss_deadline", "deadline_exceeded")
    finally:
        for context in connections:
            await context.__aexit__(None, None, None)
    await mock_bed.at_rest()
