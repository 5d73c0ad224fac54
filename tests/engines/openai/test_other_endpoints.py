"""Responses, Messages, embeddings, rerank and tokenize through the whole server."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import orjson
import pytest

from llm_runtime.core.outcome import Outcome
from llm_runtime.core.request import EndpointKind
from tests.engines.openai.upstreams import (
    Answer,
    asked,
    fake_upstream,
    gateway,
    path_of,
    reply,
    send_stream,
)
from tests.engines.upstream.stubs import Peer
from tests.support.http import ask, connected, get, post
from tests.support.server import serve
from tests.wire.typed_streams import (
    MESSAGE,
    MESSAGE_HEAD,
    RESPONSE,
    RESPONSE_HEAD,
    RESPONSE_USAGE,
    message_delta,
    response,
    response_delta,
    typed,
)

HELLO = [{"role": "user", "content": "Hello"}]
RESPONSES, MESSAGES, EMBEDDINGS = "/v1/responses", "/v1/messages", "/v1/embeddings"
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"model": "m", "input": "Hello"},
    MESSAGES: {"model": "m", "messages": HELLO, "max_tokens": 5},
    EMBEDDINGS: {"model": "m", "input": ["a", "b"]},
    "/v1/rerank": {"model": "m", "query": "q", "documents": ["a"]},
    "/tokenize": {"model": "m", "prompt": "Hello"},
}
EMBEDDED = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}],
    "model": "m",
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
}
ANSWERS: dict[str, Any] = {
    RESPONSES: response("completed", usage=RESPONSE_USAGE),
    MESSAGES: {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Hi"}], "usage": {"input_tokens": 5, "output_tokens": 3},
    },
    EMBEDDINGS: EMBEDDED,
    "/v1/rerank": {"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 9}},
    "/tokenize": {"count": 1, "max_model_len": 64, "tokens": [1]},
}  # fmt: skip
STREAMS = {RESPONSES: RESPONSE, MESSAGES: MESSAGE}
HEADS = {
    RESPONSES: (*RESPONSE_HEAD, response_delta("Blue ")),
    MESSAGES: (*MESSAGE_HEAD, message_delta("Blue ")),
}
PLAIN = pytest.mark.parametrize("path", BODIES)
STREAMED = pytest.mark.parametrize("path", STREAMS)


def answers(raw: bytes) -> Answer:
    async def answer(peer: Peer, request: bytes) -> None:
        await peer.send(raw)

    return answer


@PLAIN
async def test_plain_answers_pass(path: str) -> None:
    async with fake_upstream(answers(reply(ANSWERS[path]))) as fake, gateway(fake) as served:
        got = await ask(served.port, post({**BODIES[path], "unknown": 1, "priority": 2}, path))
        await served.at_rest()
        (record,) = served.recorder.records
        (sent,) = fake.asked
    assert got.status == 200, got
    assert got.body == orjson.dumps(ANSWERS[path]), "byte for byte"
    assert path_of(sent) == path
    assert asked(sent) == {**BODIES[path], "unknown": 1}
    assert record.outcome is Outcome.COMPLETED
    assert record.request.kind is EndpointKind(path.rpartition("/")[2])
    assert record.request.priority == 2
    assert not record.usage.estimated
    assert (record.usage.prompt_tokens > 0) == (path != "/tokenize")


@STREAMED
async def test_streams_pass_byte_for_byte(path: str) -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, *STREAMS[path])

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        got = await ask(served.port, post({**BODIES[path], "stream": True}, path))
        await served.at_rest()
        (record,) = served.recorder.records
        assert asked(fake.asked[0]) == {**BODIES[path], "stream": True}
    assert got.headers["content-type"].startswith("text/event-stream")
    assert got.body == b"".join(STREAMS[path])
    assert record.outcome is Outcome.COMPLETED
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (11, 3)
    assert record.usage.cached_tokens == 4
    assert not record.usage.estimated
    assert record.timeline.ttft_s is not None


@STREAMED
@pytest.mark.parametrize("how", ["reset", "end", "error event"])
async def test_a_stream_that_dies_ends_with_the_dialects_error_event(path: str, how: str) -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        if how == "error event":
            error = {"type": "api_error", "message": "boom http://h/"}
            await send_stream(peer, *HEADS[path], typed("error", error=error, message="boom http://h/"))
            return
        await send_stream(peer, *HEADS[path], whole=how == "end")
        if how == "reset":
            peer.reset()

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        got = await ask(served.port, post({**BODIES[path], "stream": True}, path))
        await served.at_rest()
        (record,) = served.recorder.records
    sent = b"".join(HEADS[path])
    assert got.body.startswith(sent)
    last = got.body.removeprefix(sent)
    assert last.startswith(b"event: error\ndata: ")
    error = orjson.loads(last.removeprefix(b"event: error\ndata: "))
    assert error["type"] == "error"
    assert b"http://" not in last
    if path == MESSAGES:
        assert error["error"].keys() == {"type", "message"}
        assert error["error"]["type"] == "api_error"
    else:
        assert error.keys() == {"type", "code", "message", "param", "sequence_number"}
    assert record.outcome is Outcome.FAILED
    assert record.usage.estimated


async def test_a_failed_response_counts_as_failed() -> None:
    failed = typed("response.failed", response=response("failed", error={"code": "x", "message": "no"}))

    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, *RESPONSE_HEAD, failed)

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        got = await ask(served.port, post({**BODIES[RESPONSES], "stream": True}, RESPONSES))
        await served.at_rest()
        (record,) = served.recorder.records
    assert got.body.endswith(failed)
    assert (record.outcome, record.reason) == (Outcome.FAILED, "failed")


@STREAMED
async def test_a_client_that_leaves_frees_the_slot(path: str) -> None:
    closed = asyncio.Event()

    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, *HEADS[path], whole=False)
        await peer.closed()
        closed.set()

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        async with connected(served.port) as client:
            await client.send(post({**BODIES[path], "stream": True}, path))
            await client.head()
            await client.chunk()
        await served.at_rest()
        assert served.recorder.records[0].outcome is Outcome.CANCELLED
        async with asyncio.timeout(10):
            await closed.wait()


@PLAIN
async def test_refusals_have_the_dialects_shape(path: str) -> None:
    refused = reply({"error": {"message": "no", "type": "x", "param": None, "code": None}}, "400 Bad Request")
    async with fake_upstream(answers(refused)) as fake, gateway(fake) as served:
        upstreams = await ask(served.port, post(BODIES[path], path))
        ours = await ask(served.port, post({**BODIES[path], "model": "none"}, path))
    assert (upstreams.status, ours.status) == (400, 404)
    if path == MESSAGES:
        assert upstreams.json() == {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "no"},
        }
        assert ours.json()["error"]["type"] == "not_found_error"
    else:
        assert upstreams.error["message"] == "no"
        assert ours.error["code"] == "model_not_found"


@PLAIN
@pytest.mark.parametrize("status", ["404 Not Found", "501 Not Implemented"])
async def test_an_endpoint_the_upstream_has_not(path: str, status: str) -> None:
    async with (
        fake_upstream(answers(reply({"detail": "Not Found"}, status))) as fake,
        gateway(fake) as served,
    ):
        got = await ask(served.port, post(BODIES[path], path))
    assert got.status == 404
    if path != MESSAGES:
        assert got.error["code"] == "unsupported_endpoint"
    assert "x-should-retry" not in got.headers


@pytest.mark.parametrize("path", [EMBEDDINGS, "/v1/rerank", "/tokenize"])
async def test_an_endpoint_the_engine_has_not(path: str) -> None:
    async with serve() as served:
        got = await ask(served.port, post({**BODIES[path], "model": served.model}, path))
        assert got.status == 404
        page = (await get(served.port, "/openapi.json")).json()
    assert page["paths"].keys() >= BODIES.keys()
    assert got.error["code"] == "unsupported_endpoint"


async def test_keys_as_clients_of_messages_send_them() -> None:
    settings = {"server.api_keys": "sk-CLIENTSECRET"}
    async with (
        fake_upstream(answers(reply(ANSWERS[MESSAGES]))) as fake,
        gateway(fake, settings) as served,
    ):
        good = await ask(served.port, post(BODIES[MESSAGES], MESSAGES, {"x-api-key": "sk-CLIENTSECRET"}))
        bad = await ask(served.port, post(BODIES[MESSAGES], MESSAGES, {"x-api-key": "sk-WRONG"}))
    assert good.status == 200
    assert bad.status == 401
    assert bad.json()["error"]["type"] == "authentication_error"


async def test_embeddings_in_base64_are_little_endian_floats() -> None:
    """What the upstream sends is what the client gets; the encoding is the upstream's to make."""
    raw = base64.b64encode(b"\x00\x00\x00\x3f\x00\x00\x80\xbf").decode()
    body = {**EMBEDDED, "data": [{"object": "embedding", "index": 0, "embedding": raw}]}
    async with fake_upstream(answers(reply(body))) as fake, gateway(fake) as served:
        request = {**BODIES[EMBEDDINGS], "encoding_format": "base64", "dimensions": 2}
        got = await ask(served.port, post(request, EMBEDDINGS))
        assert asked(fake.asked[0])["encoding_format"] == "base64"
        assert asked(fake.asked[0])["dimensions"] == 2
    assert got.json()["data"][0]["embedding"] == raw


async def test_limits_and_queue_hold_for_every_endpoint() -> None:
    """One slot, a queue of none: the second request of whatever kind is refused at once."""
    go_on = asyncio.Event()
    settings = {"engines.native_backend_concurrency": "1", "admission.max_queue_size": "0"}

    async def answer(peer: Peer, request: bytes) -> None:
        await go_on.wait()
        await peer.send(reply(EMBEDDED))

    async with fake_upstream(answer) as fake, gateway(fake, settings) as served:
        first = asyncio.create_task(ask(served.port, post(BODIES[EMBEDDINGS], EMBEDDINGS)))
        await served.recorder.until(lambda: bool(served.recorder.dispatches), "the first is dispatched")
        for path, body in BODIES.items():
            second = await ask(served.port, post(body, path))
            assert second.status == 503
            assert "retry-after" in second.headers
        go_on.set()
        assert (await first).status == 200


@STREAMED
async def test_an_upstream_that_only_chats_serves_them_all_the_same(path: str) -> None:
    settings = {"engines.openai.endpoints": "chat"}
    async with fake_upstream() as fake, gateway(fake, settings) as served:
        plain = await ask(served.port, post(BODIES[path], path))
        stream = await ask(served.port, post({**BODIES[path], "stream": True}, path))
        missing = await ask(served.port, post(BODIES[EMBEDDINGS], EMBEDDINGS))
        assert [path_of(request) for request in fake.asked] == ["/v1/chat/completions"] * 2
    assert b"Blue whales sing." in plain.body
    assert b"Blue " in stream.body
    assert stream.body.rpartition(b"event: ")[2].startswith((b"message_stop", b"response.completed"))
    assert missing.status == 404
