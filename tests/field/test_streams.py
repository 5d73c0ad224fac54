"""F14 to F23, F28, F34, F35, F47: streams and answers of upstreams that are sloppy, odd or about to die."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from llm_runtime.core.outcome import Outcome
from tests.engines.openai.upstreams import (
    EVENT_STREAM,
    REPLY,
    Answer,
    fake_upstream,
    gateway,
    reply,
    send_stream,
    sing,
)
from tests.engines.upstream.stubs import END, Peer, chunk
from tests.field.fleet import answers
from tests.support.http import Stream, ask, chat_body, connected, get, post
from tests.support.scripted import ScriptedBackend, ScriptedStream
from tests.support.server import serve
from tests.wire.builders import DONE, ROLE, STOP, USAGE, event, text
from tests.wire.typed_streams import RESPONSE_USAGE, response


async def streamed(port: int, **fields: Any) -> Stream:
    async with connected(port) as client:
        await client.send(post(chat_body("m", stream=True, **fields)))
        _, stream = await client.streamed()
    return stream


# ---- F14


@pytest.mark.parametrize(
    "event_bytes",
    [
        b'data: {"choices":[{"index":0,"delta":{"content":"' + "你好😀".encode() + b'"}}]}\n\n',
        b'data:{"choices":[{"index":0,"delta":{"content":"' + "你好😀".encode() + b'"}}]}\r\n\r\n',
    ],
)
async def test_f14_three_writes_with_pauses_and_one_byte_per_write(event_bytes: bytes) -> None:
    cut = [event_bytes.index(b"\xe4") + 1, event_bytes.index(b"\x9f") + 1]
    pieces = [event_bytes[: cut[0]], event_bytes[cut[0] : cut[1]], event_bytes[cut[1] :]]

    async def with_pauses(peer: Peer, request: bytes) -> None:
        await peer.send(EVENT_STREAM, chunk(ROLE))
        for piece in pieces:
            await peer.send(chunk(piece))
            await asyncio.sleep(0.02)
        await peer.send(chunk(STOP), chunk(USAGE), chunk(DONE), END)

    async def by_byte(peer: Peer, request: bytes) -> None:
        whole = ROLE + event_bytes + STOP + USAGE + DONE
        await peer.send(EVENT_STREAM, *(chunk(bytes([byte])) for byte in whole), END)

    for answer in (with_pauses, by_byte):
        async with fake_upstream(answer) as fake, gateway(fake) as served:
            stream = await streamed(served.port)
            await served.at_rest()
            (record,) = served.recorder.records
        assert stream.text == "你好😀"
        assert stream.done
        assert (record.usage.completion_tokens, record.usage.estimated) == (2, False)
        assert record.timeline.ttft_s is not None


# ---- F16


def assert_well_formed(stream: Stream, num_choices: int) -> None:
    assert stream.done
    for member in ("id", "created", "object", "model"):
        assert len({chunk[member] for chunk in stream.chunks}) == 1
    first = stream.chunks[0]
    assert first["id"]
    assert isinstance(first["created"], int)
    assert first["object"] == "chat.completion.chunk"
    seen: dict[int, list[Any]] = {}
    for one in stream.chunks:
        for choice in one["choices"]:
            if choice["index"] not in seen:
                assert choice["delta"]["role"] == "assistant"
            seen.setdefault(choice["index"], []).append(choice["finish_reason"])
    assert sorted(seen) == list(range(num_choices))
    for reasons in seen.values():
        *before, last = reasons
        assert set(before) <= {None}
        assert last in ("stop", "length", "tool_calls", "content_filter")


@pytest.mark.parametrize("num_choices", [1, 2])
async def test_f16_the_envelope_is_stable_over_seconds_and_choices(num_choices: int) -> None:
    slow = {"engines.backend": "mock", "engines.mock.decode_latency_ms": "80"}
    quiet = {"telemetry.log_level": "error", "telemetry.gpu_poll_interval_s": "0"}
    async with serve({**quiet, **slow}) as served:
        ids = set()
        for _ in range(2):
            async with connected(served.port) as client:
                await client.send(
                    post(chat_body("mock", stream=True, n=num_choices, max_tokens=14, ignore_eos=True))
                )
                _, stream = await client.streamed()
            assert_well_formed(stream, num_choices)
            ids.add(stream.chunks[0]["id"])
        plain = await ask(served.port, post(chat_body("mock", max_tokens=1)))
        ids.add(plain.json()["id"])
        assert len(ids) == 3
        assert len({name.partition("-")[0] for name in ids}) == 1, "they look alike"


# ---- F23


async def test_f23_what_a_gateway_does_not_know_passes() -> None:
    deltas = [
        {"reasoning_content": "hm"},
        {"refusal": "no"},
        {"x_unknown": {"a": [1]}},
        {},
        {"content": None},
    ]
    events = [event(delta) for delta in deltas]

    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, ROLE, *events, text("ok"), STOP, DONE)

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        stream = await streamed(served.port)
        await served.at_rest()
        (record,) = served.recorder.records
    assert [one["choices"][0]["delta"] for one in stream.chunks[1:-2]] == deltas
    assert record.usage.completion_tokens == 3, "reasoning, refusal and text; the others are no tokens"


# ---- F19 beside what tests/engines/openai/test_streams.py has


async def test_f19_a_stream_that_died_counts_as_failed_everywhere() -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, ROLE, text("a"), whole=False)
        peer.reset()

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        assert (await streamed(served.port)).error is not None
        await served.at_rest()
        metrics = (await get(served.port, "/metrics")).json()
        assert (metrics["failed_count"], metrics["completed_count"]) == (1, 0)
        assert metrics["generated_tokens_total"] == 1, "what was generated is accounted"
        assert served.recorder.attempts == [("openai-0", "failed", False)], "the failure is recorded once"


# ---- F28 c


@pytest.mark.parametrize("stream", [False, True])
async def test_f28_c_an_answer_whose_head_cannot_be_passed_on_loses_no_slot(stream: bool) -> None:
    """Header values of an upstream never become ours, whatever is in them."""
    good = False

    async def answer(peer: Peer, request: bytes) -> None:
        if good:
            await sing(peer, request)
        else:
            await peer.send(
                reply(REPLY).replace(b"\r\n\r\n", b"\r\nx-odd: a\nb\r\nset-cookie: x=1\r\n\r\n", 1)
            )

    async with fake_upstream(answer) as fake, gateway(fake, {"routing.breaker_failures": "none"}) as served:
        for _ in range(20):
            got = await ask(served.port, post(chat_body("m", stream=stream)))
            assert got.status in (200, 502)
            assert not {"x-odd", "set-cookie"} & set(got.headers)
        await served.at_rest()
        good = True
        assert (await ask(served.port, post(chat_body("m")))).status == 200
        assert (await get(served.port, "/metrics")).json()["active_requests"] == 0


# ---- F34


async def test_f34_the_log_names_the_upstream_and_the_client_is_not_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    page = reply(b"<html>nginx at 10.0.0.1</html>", "502 Bad Gateway", "text/html")
    async with (
        fake_upstream(answers(page)) as fake,
        gateway(fake, {"telemetry.log_level": "info"}) as served,
    ):
        got = await ask(served.port, post(chat_body("m")))
        name = f"127.0.0.1:{fake.server.address.port}"
    assert got.status == 502
    assert name not in repr(got)
    assert "10.0.0.1" not in repr(got)
    out, err = capfd.readouterr()
    lines = [orjson.loads(line) for line in (out + err).splitlines() if line.startswith("{")]
    (refused,) = [line for line in lines if line["event"] == "upstream.refused"]
    assert (refused["upstream"], refused["status"], refused["content_type"]) == (name, 502, "text/html")


MESSAGE: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": "Hi"}],
    "usage": {"input_tokens": 5, "output_tokens": 3},
}  # fmt: skip
OUTPUT = [{"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
           "content": [{"type": "output_text", "text": "Hi", "annotations": []}]}]  # fmt: skip
TYPED = [
    ("/v1/responses", {"input": "a"}, response("completed", output=OUTPUT, usage=RESPONSE_USAGE),
     b'"delta":"Hi"', b"event: response.completed\n"),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}, MESSAGE,
     b'"text":"Hi"', b"event: message_stop\n"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "body", "delta", "end"), TYPED, ids=["responses", "messages"])
async def test_f34_j_a_plain_answer_to_a_typed_stream_becomes_one(
    path: str, fields: dict[str, Any], body: dict[str, Any], delta: bytes, end: bytes
) -> None:
    async with fake_upstream(answers(reply(body))) as fake, gateway(fake) as served:
        got = await ask(served.port, post({"model": "m", "stream": True, **fields}, path))
        await served.at_rest()
        (record,) = served.recorder.records
    assert got.status == 200
    assert got.headers["content-type"].startswith("text/event-stream")
    assert delta in got.body
    assert end in got.body
    assert record.outcome is Outcome.COMPLETED
    assert record.usage.completion_tokens == 3
    assert not record.usage.estimated


async def test_f34_h_a_redirect_is_not_followed_with_the_key() -> None:
    async with fake_upstream() as other:
        moved = reply(b"", "307 Temporary Redirect", "", location=f"{other.url}/v1/chat/completions")
        async with (
            fake_upstream(answers(moved)) as fake,
            gateway(fake, {"engines.openai.api_key": "sk-UPSTREAMSECRET"}) as served,
        ):
            assert (await ask(served.port, post(chat_body("m")))).status == 502
        assert other.server.requests == []


# ---- F35


async def test_f35_a_connections_that_the_upstream_closes_when_idle_cost_nobody_anything() -> None:
    """It closes each at about the moment at which the next request goes out: 500 times."""

    async def answer(peer: Peer, request: bytes) -> None:
        await peer.send(reply(REPLY))
        asyncio.get_running_loop().call_later(0.003, peer.close)

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        async with connected(served.port) as client:
            for number in range(500):
                await client.send(post(chat_body("m")))
                assert (await client.reply()).status == 200
                await asyncio.sleep(0.002 + 0.0001 * (number % 20))
        await served.settled(500)
        assert {result for _, result, _ in served.recorder.attempts} == {"answered"}
        assert not any(retried for *_, retried in served.recorder.attempts), "no failure of the upstream's"


async def test_f35_d_the_gateways_own_keep_alive_outlasts_common_balancers() -> None:
    async with fake_upstream() as fake, gateway(fake) as served:
        assert served.server.config.timeout_keep_alive > 60
        assert served.server.config.timeout_keep_alive == 75
    async with fake_upstream() as fake, gateway(fake, {"server.keep_alive_s": "120"}) as served:
        assert served.server.config.timeout_keep_alive == 120


# ---- F47: the gateway's own time to first token

CALL = {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}
NAMED = {
    "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]
}


@pytest.mark.parametrize(
    ("before", "first"),
    [
        ((ROLE, b": ping\n\n"), text("a")),
        ((event({"role": "assistant", "content": None}),), text("a")),
        ((ROLE, event({})), event({"reasoning_content": "hm"})),
        ((ROLE, event(NAMED)), event(CALL)),
    ],
    ids=["role and ping", "content null", "reasoning", "arguments"],
)
async def test_f47_the_first_token_is_no_role_no_ping_and_no_name(
    before: tuple[bytes, ...], first: bytes
) -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, *before, whole=False)
        await asyncio.sleep(0.3)
        await peer.send(chunk(first), chunk(STOP), chunk(USAGE), chunk(DONE), END)

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        assert (await streamed(served.port)).done
        await served.at_rest()
        (record,) = served.recorder.records
        assert record.timeline.ttft_s is not None
        assert 0.29 < record.timeline.ttft_s < 3.0


@pytest.mark.parametrize("how", ["error first", "plain"])
async def test_f47_without_a_token_there_is_no_first(how: str) -> None:
    async def fails(peer: Peer, request: bytes) -> None:
        await send_stream(peer, b'data: {"error":{"message":"x"}}\n\n')

    answer: Answer = fails if how == "error first" else sing
    async with fake_upstream(answer) as fake, gateway(fake) as served:
        await ask(served.port, post(chat_body("m", stream=how == "error first")))
        await served.at_rest()
        (record,) = served.recorder.records
        assert record.timeline.ttft_s is None
        assert (record.outcome is Outcome.FAILED) == (how == "error first")


async def test_f47_a_role_chunk_with_text_is_a_token() -> None:
    def speak(engine: ScriptedStream) -> None:
        engine.say("at once")
        engine.end()

    backend = ScriptedBackend(on_open=speak)
    async with serve(backend=backend) as served:
        async with connected(served.port) as client:
            await client.send(post(chat_body(backend.info.model, stream=True)))
            await client.streamed()
        await served.settled(1)
        assert served.recorder.records[0].timeline.ttft_s is not None
