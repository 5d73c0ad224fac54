"""What an upstream's streams become on their way through the whole server, read byte by byte."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from llm_runtime.core.outcome import Outcome
from tests.engines.openai.upstreams import (
    BLUE,
    EVENT_STREAM,
    REPLY,
    Answer,
    asked,
    fake_upstream,
    gateway,
    reply,
    send_stream,
)
from tests.engines.upstream.stubs import END, Peer, chunk
from tests.support.http import COMPLETIONS, Stream, ask, chat_body, connected, post
from tests.wire.builders import DONE, ROLE, STOP, USAGE, event, frame, text

SPLIT = text("你好😀 ok")


async def streamed(answer: Answer, settings: dict[str, str] | None = None, **fields: Any) -> Stream:
    """The stream a client gets from the gateway while the upstream answers so."""
    async with fake_upstream(answer) as fake, gateway(fake, settings) as served:
        async with connected(served.port) as client:
            await client.send(post(chat_body("m", stream=True, **fields)))
            head, stream = await client.streamed()
            assert head.status == 200
        await served.at_rest()
        assert len(fake.asked) == 1, "a stream is asked for once"
    return stream


def sends(*events: bytes) -> Answer:
    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, *events)

    return answer


async def test_bytes_pass_through_unharmed() -> None:
    """Unknown members of chunk, choice and delta; no space after the colon; comments; `event:` lines."""
    choice = {
        "index": 0,
        "delta": {"content": "a\u2028b", "x_unknown": [1, {"y": None}]},
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": 7,
    }
    odd = frame({**orjson.loads(ROLE[6:]), "system_fingerprint": "f", "choices": [choice]})
    sent = [ROLE, odd, odd.replace(b"data: ", b"data:"), STOP, DONE]
    dressed = [b": ping\n\n", *sent[:3], b"event: message\nid: 7\n" + text("x"), *sent[3:]]

    async with fake_upstream(sends(*dressed)) as fake, gateway(fake) as served:
        got = await ask(served.port, post(chat_body("m", stream=True)))
    expected = b"".join((*sent[:3], text("x"), *sent[3:]))
    assert got.body == expected, "an upstream's comments are for us, its data are for the client"


async def test_f14_characters_cut_by_reads() -> None:
    cuts = [SPLIT.index("你".encode()) + 1, SPLIT.index("😀".encode()) + 2]
    pieces = [SPLIT[: cuts[0]], SPLIT[cuts[0] : cuts[1]], SPLIT[cuts[1] :]]

    async def in_three(peer: Peer, request: bytes) -> None:
        await peer.send(EVENT_STREAM, *map(chunk, (ROLE, *pieces, STOP, USAGE, DONE)), END)

    async def byte_by_byte(peer: Peer, request: bytes) -> None:
        whole = ROLE + SPLIT + STOP + USAGE + DONE
        await peer.send(EVENT_STREAM, *(chunk(bytes([byte])) for byte in whole), END)

    for answer in (in_three, byte_by_byte):
        stream = await streamed(answer)
        assert stream.text == "你好😀 ok"
        assert stream.done


async def test_f16_a_sloppy_envelope_is_put_right() -> None:
    def sloppy(number: int, finish: str | None, **delta: Any) -> bytes:
        choice = {"index": number, "delta": delta, "finish_reason": finish}
        return frame({"id": f"id{number}", "model": "internal", "object": "x", "choices": [choice]})

    stream = await streamed(
        sends(sloppy(1, "", content="a"), sloppy(2, "", content="b"), sloppy(3, "stop"), DONE)
    )
    assert stream.text == "ab"
    for member in ("id", "created", "object", "model"):
        assert len({event[member] for event in stream.events}) == 1
    assert stream.events[0]["id"]
    assert isinstance(stream.events[0]["created"], int)
    assert stream.events[0]["model"] == "m"
    assert stream.events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [e["choices"][0]["finish_reason"] for e in stream.events] == [None, None, "stop"]
    assert {e["choices"][0]["index"] for e in stream.events} == {0}


USAGE_EVERYWHERE = (
    ROLE,
    text("a", usage={"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}),
    text("b", usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}),
    STOP,
)
WITHOUT_CHOICES = (
    ROLE,
    text("a"),
    text("b"),
    STOP,
    frame({"id": "e1", "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}),
)


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
@pytest.mark.parametrize("events", [USAGE_EVERYWHERE, WITHOUT_CHOICES, (*USAGE_EVERYWHERE, USAGE)])
async def test_f17_usage_nobody_asked_for(events: tuple[bytes, ...], options: dict[str, Any]) -> None:
    stream = await streamed(sends(*events, DONE), **options)
    assert all(event["choices"] for event in stream.events)
    assert not any("usage" in event for event in stream.events)
    assert stream.done


@pytest.mark.parametrize("events", [USAGE_EVERYWHERE, WITHOUT_CHOICES, (*USAGE_EVERYWHERE, USAGE)])
async def test_f17_usage_asked_for_comes_once(events: tuple[bytes, ...]) -> None:
    stream = await streamed(sends(*events, DONE), stream_options={"include_usage": True})
    *others, last = stream.events
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (3, 2)
    assert last["usage"]["total_tokens"] == 5
    assert all(event["usage"] is None and event["choices"] for event in others)


async def test_f17_g_an_upstream_without_usage_is_estimated() -> None:
    async with fake_upstream(sends(ROLE, *BLUE, STOP, DONE)) as fake, gateway(fake) as served:
        async with connected(served.port) as client:
            await client.send(post(chat_body("m", stream=True, stream_options={"include_usage": True})))
            _, stream = await client.streamed()
        await served.at_rest()
        (record,) = served.recorder.records
    assert record.usage.estimated
    assert record.usage.completion_tokens == len(BLUE)
    assert stream.events[-1]["usage"]["completion_tokens"] == len(BLUE)


async def test_f17_e_stream_options_of_a_plain_request_go_nowhere() -> None:
    async with fake_upstream() as fake, gateway(fake) as served:
        answer = await ask(served.port, post(chat_body("m", stream_options={"include_usage": True})))
        assert answer.status == 400
        assert answer.error["param"] == "stream_options"
        assert not fake.asked


@pytest.mark.parametrize("with_usage", [False, True])
@pytest.mark.parametrize("case", ["a", "b", "c", "d", "f"])
async def test_f19_a_stream_that_dies_never_looks_finished(case: str, with_usage: bool) -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, ROLE, *BLUE, whole=False)
        if case == "a":
            peer.reset()
        elif case == "b":
            await peer.send(END)
        elif case == "c":
            await peer.send(chunk(text("half")[:-20]), END)
        elif case == "d":
            failure = {
                "error": {"message": "boom at http://10.0.0.1:9/", "type": "server_error", "code": 500}
            }
            await peer.send(chunk(frame(failure)), END)
        else:
            peer.close()

    fields = {"stream_options": {"include_usage": True}} if with_usage else {}
    async with fake_upstream(answer) as fake, gateway(fake) as served:
        async with connected(served.port) as client:
            await client.send(post(chat_body("m", stream=True, **fields)))
            _, stream = await client.streamed()
        await served.at_rest()
        (record,) = served.recorder.records
        assert len(fake.asked) == 1
    assert stream.text == "Blue whales sing."
    assert stream.error is not None
    assert "10.0.0.1" not in stream.error["message"]
    assert not any(e["choices"][0]["finish_reason"] for e in stream.chunks if e["choices"])
    assert record.outcome is Outcome.FAILED
    assert record.usage.estimated
    assert record.usage.completion_tokens == len(BLUE)


async def test_f19_e_f32_c_silence_ends_at_the_idle_limit() -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, ROLE, *BLUE, whole=False)
        await peer.closed()

    stream = await streamed(answer, {"limits.stream_idle_timeout_s": "0.3"})
    assert stream.text == "Blue whales sing."
    assert stream.error is not None
    assert stream.error["code"] == "deadline_exceeded"


async def test_f32_d_an_upstream_that_never_answers() -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await peer.closed()

    settings = {"limits.request_timeout_s": "0.3"}
    async with fake_upstream(answer) as fake, gateway(fake, settings) as served:
        for stream in (False, True):
            refused = await ask(served.port, post(chat_body("m", stream=stream)))
            assert refused.status == 504
            assert refused.error["code"] == "deadline_exceeded"
        await served.at_rest()


async def test_f23_tool_calls_keep_their_parts() -> None:
    def call(**function: Any) -> dict[str, Any]:
        return {"index": 0, "function": function}

    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    second = {"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    deltas: list[dict[str, Any]] = [
        {"tool_calls": [first]},
        {"tool_calls": [call(arguments='{"a":')]},
        {"tool_calls": [second]},
        {"tool_calls": [call(arguments="1}")]},
        {"reasoning_content": "hm", "x": 1},
        {"content": None},
    ]
    events = [event(delta) for delta in deltas]
    stream = await streamed(sends(ROLE, *events, event(finish="tool_calls"), DONE))
    assert [e["choices"][0]["delta"] for e in stream.events[1:-1]] == deltas
    assert stream.events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_f11_g_two_names_for_one_model_and_no_leak_of_the_inner_one() -> None:
    events = [raw.replace(b'"m"', b'"org/inner"') for raw in (ROLE, *BLUE, STOP, DONE)]

    async def answer(peer: Peer, request: bytes) -> None:
        assert asked(request)["model"] == "org/inner"
        await send_stream(peer, *events)

    settings = {"engines.openai.models": "outer=org/inner, other=org/inner"}
    async with fake_upstream(answer, models=["org/inner"]) as fake, gateway(fake, settings) as served:
        for name in ("outer", "other"):
            async with connected(served.port) as client:
                await client.send(post(chat_body(name, stream=True)))
                _, stream = await client.streamed()
            assert stream.text == "Blue whales sing."
            assert {event["model"] for event in stream.events} == {name}
        refused = await ask(served.port, post(chat_body("org/inner")))
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")


async def test_f34_j_a_plain_answer_to_a_stream_becomes_one() -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await peer.send(reply(REPLY))

    stream = await streamed(answer, stream_options={"include_usage": True})
    assert stream.text == "Blue whales sing."
    assert stream.events[-1]["usage"]["completion_tokens"] == 4
    assert stream.done


async def test_legacy_completions_with_several_prompts() -> None:
    def piece(index: int, content: str, finish: str | None = None) -> bytes:
        choice = {"index": index, "text": content, "logprobs": None, "finish_reason": finish}
        return frame(
            {"id": "c", "object": "text_completion", "created": 5, "model": "m", "choices": [choice]}
        )

    events = [piece(0, "a"), piece(1, "b"), piece(0, "", "stop"), piece(1, "", "length"), DONE]
    body = {"model": "m", "prompt": ["x", "y"], "stream": True}
    async with (
        fake_upstream(sends(*events)) as fake,
        gateway(fake) as served,
        connected(served.port) as client,
    ):
        await client.send(post(body, COMPLETIONS))
        _, stream = await client.streamed()
    assert stream.done
    assert [e["choices"][0]["index"] for e in stream.events] == [0, 1, 0, 1]
