"""Responses and Messages over an engine that only knows chats, through the whole server."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from llm_runtime.core.outcome import Outcome
from llm_runtime.core.request import EndpointKind
from tests.support.http import Reply, ask, connected, get, post
from tests.support.server import MOCK, Served, serve

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "Hello there"}]
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"model": "mock", "input": "Hello there", "max_output_tokens": 6},
    MESSAGES: {"model": "mock", "messages": HELLO, "max_tokens": 6},
}
BOTH = pytest.mark.parametrize("path", BODIES)
SLOW = {**MOCK, "engines.mock.prefill_latency_ms": "50", "engines.mock.decode_latency_ms": "50"}


def text_of(path: str, body: dict[str, Any]) -> str:
    block = body["content"][0] if path == MESSAGES else body["output"][0]["content"][0]
    text: str = block["text"]
    return text


def events_of(reply: Reply) -> list[dict[str, Any]]:
    blocks = reply.body.decode().removesuffix("\n\n").split("\n\n")
    return [orjson.loads(block.partition("\ndata: ")[2]) for block in blocks if not block.startswith(":")]


async def chat_text(served: Served) -> str:
    got = await ask(served.port, post({"model": "mock", "messages": HELLO, "max_tokens": 6}))
    text: str = got.json()["choices"][0]["message"]["content"]
    return text


@BOTH
async def test_the_words_are_the_chats(path: str) -> None:
    async with serve() as served:
        plain = await ask(served.port, post(BODIES[path], path))
        stream = await ask(served.port, post({**BODIES[path], "stream": True}, path))
        text = await chat_text(served)
        await served.at_rest()
        records = served.recorder.records
    assert plain.status == stream.status == 200
    assert text_of(path, plain.json()) == text
    assert stream.headers["content-type"].startswith("text/event-stream")
    events = events_of(stream)
    kinds = ("content_block_delta", "response.output_text.delta")
    deltas = [event["delta"] for event in events if event["type"] in kinds]
    assert "".join(d["text"] if path == MESSAGES else d for d in deltas) == text
    assert events[-1]["type"] == ("message_stop" if path == MESSAGES else "response.incomplete")
    for record in records[:2]:
        assert record.outcome is Outcome.COMPLETED
        assert record.request.endpoint is EndpointKind(path.rpartition("/")[2])
        assert (record.usage.completion_tokens, record.usage.estimated) == (6, False)
    assert records[1].timeline.ttft_s is not None


@BOTH
async def test_it_is_counted_under_its_own_name(path: str) -> None:
    async with serve() as served:
        await ask(served.port, post(BODIES[path], path))
        await served.at_rest()
        metrics = (await get(served.port, "/metrics?format=prometheus")).body.decode()
    assert f'endpoint="{path.rpartition("/")[2]}"' in metrics
    assert 'endpoint="chat"' not in metrics


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_the_slot(path: str, stream: bool) -> None:
    async with serve(SLOW) as served:
        async with connected(served.port) as client:
            await client.send(post({**BODIES[path], "stream": stream}, path))
            await served.recorder.until(lambda: bool(served.recorder.dispatches), "it is dispatched")
            if stream:
                await client.head()
        await served.at_rest()
        assert served.recorder.records[0].outcome is Outcome.CANCELLED


@BOTH
async def test_faults_are_told_in_the_dialect(path: str) -> None:
    wrong: dict[str, dict[str, Any]] = {
        RESPONSES: {"previous_response_id": "r1"},
        MESSAGES: {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    }
    async with serve() as served:
        fault = await ask(served.port, post({**BODIES[path], **wrong[path]}, path))
        engines = await ask(served.port, post({**BODIES[path], "tools": _tools(path)}, path))
        missing = await ask(served.port, post({**BODIES[path], "model": "none"}, path))
        assert not served.recorder.accepted_ids
    assert (fault.status, engines.status, missing.status) == (400, 400, 404)
    for reply in (fault, engines, missing):
        if path == MESSAGES:
            assert reply.json().keys() == {"type", "error"}
        else:
            assert reply.error
    if path == RESPONSES:
        assert fault.error["param"] == "previous_response_id"


def _tools(path: str) -> list[dict[str, Any]]:
    if path == MESSAGES:
        return [{"name": "f", "input_schema": {"type": "object"}}]
    return [{"type": "function", "name": "f", "parameters": {"type": "object"}}]


@BOTH
async def test_comments_while_nothing_comes(path: str) -> None:
    settings = {**MOCK, "engines.mock.prefill_latency_ms": "400", "limits.keep_alive_interval_s": "0.1"}
    async with serve(settings) as served:
        reply = await ask(served.port, post({**BODIES[path], "stream": True}, path))
    assert reply.body.startswith(b": ")
    assert events_of(reply)[0]["type"] in ("message_start", "response.created")


@BOTH
async def test_the_end_of_the_engine_is_an_error_event(path: str) -> None:
    async with serve(SLOW) as served, connected(served.port) as client:
        await client.send(post({**BODIES[path], "stream": True}, path))
        await client.head()
        await client.chunk()
        (pool,) = served.runtime.pools
        (replica,) = pool.dispatcher.replicas.values()
        await replica.backend.aclose()
        rest = b""
        while piece := await client.chunk():
            rest += piece
    last = rest.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
    assert last.startswith(b"event: error\ndata: ")
    assert orjson.loads(last.removeprefix(b"event: error\ndata: "))["type"] == "error"


async def test_large_requests_are_translated_too() -> None:
    body = {**BODIES[MESSAGES], "messages": [{"role": "user", "content": "word " * 80_000}]}
    async with serve(MOCK, engines__mock__context_tokens="1000000") as served:
        assert (await ask(served.port, post(body, MESSAGES))).status == 200


@BOTH
async def test_priority_and_limits_hold(path: str) -> None:
    async with serve(MOCK, admission__max_queue_size="0") as served:
        await ask(served.port, post({**BODIES[path], "priority": 1}, path))
        await served.at_rest()
        assert served.recorder.records[0].request.priority == 1
