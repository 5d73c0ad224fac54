"""What a client may get wrong: each is an error object with the right status, the same plain and streamed,
and leaves counters, slots and the connection as they were."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from tests.support.http import CHAT, COMPLETIONS, Reply, chat_body, connected, get, post
from tests.support.server import Served, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "x" * 40_000
"""10,000 tokens of the mock's, which takes 8,192."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Served]:
    async with serve(engines__mock__prefill_latency_ms="0", engines__mock__decode_latency_ms="0") as served:
        yield served
        await served.at_rest()


@dataclass(frozen=True)
class Bad:
    """raw: the body as it is sent; else `fields` on top of a good one (ABSENT takes a field away)."""

    name: str
    status: int = 400
    param: str | None = None
    code: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    raw: bytes | None = None
    path: str = CHAT
    headers: Mapping[str, str] = field(default_factory=dict)


ABSENT: Any = object()


def bad(name: str, param: str | None = None, code: str | None = None, **fields: Any) -> Bad:
    return Bad(name, 400, param, code, fields)


def raw(name: str, body: bytes, **expected: Any) -> Bad:
    return Bad(name, raw=body, **expected)


def said(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def with_member(member: str) -> bytes:
    """A good body with one more member, written as no JSON library would write it."""
    return b'{"model":"mock","messages":[{"role":"user","content":"hi"}],%b}' % member.encode()


UNREADABLE = [
    raw("half a body", b'{"model":', code="invalid_json"),
    raw("no body", b"", code="invalid_json"),
    raw("a string", b'"hello"'),
    raw("an array", b"[1,2]"),
    raw("null", b"null"),
    raw("not UTF-8", bytes.fromhex("7b2261223a22fffe227d"), code="invalid_json"),
    raw("deeply nested", with_member('"x":' + "[" * 120 + "]" * 120)),
    raw("very deeply nested", b"[" * 100_000),
    raw("two values", with_member('"a":1') + b"{}"),
    Bad(
        "compressed, it says", 400, code="unsupported_content_encoding", headers={"content-encoding": "gzip"}
    ),
    Bad("no content type", 415, code="unsupported_media_type", headers={"content-type": ""}),
    Bad("a form", 415, headers={"content-type": "application/x-www-form-urlencoded"}),
    Bad("text", 415, headers={"content-type": "text/plain"}),
]

SURROGATES = [
    raw("in content", b'{"model":"mock","messages":[{"role":"user","content":"x\\ud800y"}]}'),
    raw(
        "in a text part",
        b'{"model":"mock","messages":[{"role":"user","content":[{"type":"text","text":"\\udfff"}]}]}',
    ),
    raw(
        "in a tool message",
        b'{"model":"mock","messages":[{"role":"tool","tool_call_id":"a","content":"\\ud800"}]}',
    ),
    raw("in stop", with_member(r'"stop":["\ud800"]')),
    raw("in user", with_member(r'"user":"\udc00"')),
    raw("in the model", b'{"model":"\\ud800","messages":[{"role":"user","content":"hi"}]}'),
    raw("in a key", with_member(r'"\ud800":1')),
]

NUMBERS = [
    raw("temperature NaN", with_member('"temperature":NaN')),
    raw("temperature Infinity", with_member('"temperature":Infinity')),
    raw("temperature 1e999", with_member('"temperature":1e999')),
    raw("top_p NaN", with_member('"top_p":NaN')),
    raw("NaN in an unknown field", with_member('"other":NaN')),
    raw("an integer of 5,000 digits", with_member('"seed":' + "9" * 5000)),
    *(bad(f"temperature {v!r}", "temperature", temperature=v) for v in (-0.1, 2.5, "0.7", True, "nan")),
    *(bad(f"top_p {v!r}", "top_p", top_p=v) for v in (1.5, -0.1, "1", False)),
    *(bad(f"presence_penalty {v!r}", "presence_penalty", presence_penalty=v) for v in (-3, 2.1, "0")),
    *(bad(f"frequency_penalty {v!r}", "frequency_penalty", frequency_penalty=v) for v in (-2.01, 3)),
    *(bad(f"max_tokens {v!r}", "max_tokens", max_tokens=v) for v in (-1, 1.5, 1e18, 2**63, "5", True)),
    *(
        bad(f"max_completion_tokens {v!r}", "max_completion_tokens", max_completion_tokens=v)
        for v in (-1, 0.5)
    ),
    *(bad(f"n {v!r}", "n", n=v) for v in (0, -1, 100_000, 1.0, "1")),
    bad("n above the slots", "n", "too_many_sequences", n=9),
    *(bad(f"seed {v!r}", "seed", seed=v) for v in (2**63, 1.5, "1")),
    bad("top_logprobs 21", "top_logprobs", logprobs=True, top_logprobs=21),
    *(bad(f"priority {v!r}", "priority", priority=v) for v in (17, -1, 10**9, 2.5, "urgent")),
    bad("service_tier", "service_tier", service_tier="gold"),
]

MESSAGES = [
    bad("no messages", "messages", messages=[]),
    bad("absent", "messages", "missing_required_parameter", messages=ABSENT),
    bad("null", "messages", messages=None),
    bad("a string", "messages", messages="hi"),
    bad("an object", "messages", messages={}),
    bad("a null in them", "messages[0]", messages=[None]),
    bad("no role", "messages[0].role", messages=[{"content": "hi"}]),
    bad("an unknown role", "messages[0].role", messages=[{"role": "wizard", "content": "hi"}]),
    bad("no content", "messages[0].content", messages=[{"role": "user"}]),
    bad("content null", "messages[0].content", messages=said(None)),
    bad("content a number", "messages[0].content", messages=said(7)),
    bad("no parts", "messages[0].content", messages=said([])),
    bad("a part without text", "messages[0].content[0].text", messages=said([{"type": "text"}])),
    bad("an image", "messages[0].content[0]", messages=said([{"type": "image_url", "image_url": {}}])),
    bad("the second is wrong", "messages[1].role", messages=[*said("a"), {"role": 5, "content": "b"}]),
    bad("too many", "messages", "array_too_long", messages=said("a") * 2001),
    bad("too long", "messages", "context_length_exceeded", messages=said(LONG)),
    bad("shape before model", "messages", model="no-such", messages=[]),
]  # fmt: skip

TOOL = {"type": "function", "function": {"name": "f"}}

FIELDS = [
    bad("model empty", "model", model=""),
    bad("model null", "model", model=None),
    bad("model absent", "model", "missing_required_parameter", model=ABSENT),
    bad("model a number", "model", model=5),
    bad("stream a string", "stream", stream="yes"),
    bad("stop a number", "stop", stop=5),
    bad("five stops", "stop", stop=["a", "b", "c", "d", "e"]),
    bad("an empty stop", "stop", stop=""),
    bad("too many tools", "tools", "array_too_long", tools=[TOOL] * 129),
    bad("tools", "tools", "unsupported_parameter", tools=[TOOL]),
    bad("a forced call", "tool_choice", tool_choice="required"),
    bad("json", "response_format", "unsupported_parameter", response_format={"type": "json_object"}),
    bad("logprobs", "logprobs", "unsupported_parameter", logprobs=True),
    bad("top_logprobs alone", "top_logprobs", top_logprobs=2),
    bad("metadata", "metadata", metadata={str(n): "x" for n in range(17)}),
    bad("safety_identifier", "safety_identifier", safety_identifier="x" * 129),
    bad("logit_bias", "logit_bias", logit_bias={"50256": -100}),
]  # fmt: skip

TEXTS = [
    Bad(name, 400, param, code, {"messages": ABSENT, "prompt": "hi", **fields}, path=COMPLETIONS)
    for name, param, code, fields in [
        ("absent", "prompt", "missing_required_parameter", {"prompt": ABSENT}),
        ("null", "prompt", "missing_required_parameter", {"prompt": None}),
        ("none", "prompt", None, {"prompt": []}),
        ("a number", "prompt", None, {"prompt": 5}),
        ("mixed", "prompt[1]", None, {"prompt": ["a", 1]}),
        ("too many", "prompt", "too_many_sequences", {"prompt": ["a"] * 9}),
        ("too many choices", "n", "too_many_sequences", {"prompt": ["a", "b", "c"], "n": 3}),
        ("too many candidates", "best_of", "too_many_sequences", {"best_of": 20, "stream": False}),
        ("too long", "prompt", "context_length_exceeded", {"prompt": LONG}),
        ("echo", "echo", "unsupported_parameter", {"echo": True}),
        ("suffix", "suffix", "unsupported_parameter", {"suffix": "x"}),
        ("logprobs", "logprobs", None, {"logprobs": 6}),
        ("temperature", "temperature", None, {"temperature": "0.7"}),
    ]
]

MODELS = [
    Bad("unknown", 404, "model", "model_not_found", {"model": "no-such-model"}),
    Bad("a leading blank", 404, "model", "model_not_found", {"model": " mock"}),
    Bad("another case", 404, "model", "model_not_found", {"model": "Mock"}),
    Bad("odd characters", 404, "model", "model_not_found", {"model": 'a"b\\c\nd\U0001f600'}),
    Bad("long", 404, "model", "model_not_found", {"model": "x" * 512}),
    Bad("unknown, text", 404, "model", "model_not_found", {"model": "x", "prompt": "p", "messages": ABSENT},
        path=COMPLETIONS),
    bad("too long a name", "model", model="x" * 10_240),
]  # fmt: skip

CASES = [*UNREADABLE, *SURROGATES, *NUMBERS, *MESSAGES, *FIELDS, *TEXTS, *MODELS]


def request_of(case: Bad, stream: bool) -> bytes:
    if case.raw is not None:
        body = case.raw
        if stream and body.endswith(b"}"):
            body = body[:-1] + b',"stream":true}'
        return post(body, case.path, case.headers)
    fields = {**chat_body("mock", stream=stream), **case.fields}
    present = {key: value for key, value in fields.items() if value is not ABSENT}
    return post(json.dumps(present).encode(), case.path, case.headers)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.path.rsplit('/', 1)[1]}: {case.name}")
async def test_is_refused_and_leaves_no_trace(server: Served, case: Bad) -> None:
    recorder = server.recorder
    num_refused, num_accepted = len(recorder.refusals), len(recorder.accepted_ids)
    async with connected(server.port) as connection:
        errors = []
        for stream in (False, True):
            await connection.send(request_of(case, stream))
            reply = await connection.reply()
            errors.append(assert_refused(case, reply))
        assert errors[0] == errors[1]
        endpoint = "chat" if case.path == CHAT else "completions"
        refused = [refusal[:2] for refusal in recorder.refusals[num_refused:]]
        assert refused == [(endpoint, case.status)] * 2
        assert (len(recorder.accepted_ids), recorder.rejections) == (num_accepted, [])
        assert (server.runtime.num_active, server.num_taken_slots) == (0, 0)
        # The next request on the same connection is an ordinary one.
        await connection.send(post(chat_body("mock", max_tokens=1)))
        assert (await connection.reply()).status == 200


def assert_refused(case: Bad, reply: Reply) -> dict[str, Any]:
    error = reply.error
    assert reply.status == case.status, error
    assert error["type"] == "invalid_request_error"
    if case.param is not None:
        assert error["param"] == case.param, error
    if case.code is not None:
        assert error["code"] == case.code, error
    for leak in ("Traceback", "Error(", "pydantic", "orjson", "/src/", "<class"):
        assert leak not in error["message"]
    assert "retry-after" not in reply.headers
    return error


async def test_an_over_long_prompt_is_told_with_both_counts(server: Served) -> None:
    async with connected(server.port) as connection:
        await connection.send(post(chat_body("mock", messages=said(LONG))))
        message = (await connection.reply()).error["message"]
    assert "10000" in message
    assert "8192" in message


async def test_the_process_is_well_afterwards(server: Served) -> None:
    reply = await get(server.port, "/health")
    assert (reply.status, reply.json()) == (200, {"status": "ok"})


# ---- what looks odd and is right


NULLS = ["temperature", "top_p", "n", "stop", "seed", "max_tokens", "max_completion_tokens", "logprobs",
         "stream", "stream_options", "presence_penalty", "frequency_penalty", "logit_bias", "tools", "user",
         "response_format", "priority", "service_tier", "metadata", "top_logprobs"]  # fmt: skip

GOOD = [
    *({name: None} for name in NULLS),
    dict.fromkeys(NULLS),
    {"messages": [{"role": "system", "content": [{"type": "text", "text": "Answer in one word."}]},
                  *said([{"type": "text", "text": "Sky "}, {"type": "text", "text": "colour?"}])]},
    {"messages": [{"role": "developer", "content": "a"}, {"role": "user", "content": "b", "name": None}]},
    {"messages": [{"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "7"}]},
    {"temperature": 0}, {"temperature": 2}, {"top_p": 0}, {"seed": -1}, {"seed": 2**63 - 1},
    {"presence_penalty": -2}, {"max_tokens": 2147483647, "stop": ["a"]}, {"max_tokens": 0},
    {"stop": []}, {"stop": ["a", "b", "c", "d"]}, {"n": 8}, {"priority": 0}, {"priority": 9},
    {"tools": []}, {"response_format": {"type": "text"}},
    {"user": "u", "store": False, "metadata": {"a": "b"}},
    {"top_k": 40, "min_p": 0.1, "ignore_eos": True},
]  # fmt: skip


@pytest.mark.parametrize("fields", GOOD, ids=str)
async def test_is_served(server: Served, fields: dict[str, Any]) -> None:
    async with connected(server.port) as connection:
        await connection.send(post(chat_body("mock", **{"max_tokens": 3, **fields})))
        reply = await connection.reply()
    assert reply.status == 200, reply.body
    body = reply.json()
    assert len(body["choices"]) == (fields.get("n") or 1)
    assert body["usage"]["prompt_tokens"] > 0
    assert (
        body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    )


async def test_a_pair_of_surrogates_is_one_character(server: Served) -> None:
    body = b'{"model":"mock","max_tokens":1,"messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    async with connected(server.port) as connection:
        await connection.send(post(body))
        assert (await connection.reply()).status == 200


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/vnd.api+json",
        " application/json ;x=y",
    ],
)
async def test_json_by_any_other_name(server: Served, content_type: str) -> None:
    async with connected(server.port) as connection:
        await connection.send(post(chat_body("mock", max_tokens=1), headers={"content-type": content_type}))
        assert (await connection.reply()).status == 200


CAPS = [
    ({"max_tokens": 5}, 5, "length"),
    ({"max_completion_tokens": 5}, 5, "length"),
    ({"max_tokens": 50, "max_completion_tokens": 5}, 5, "length"),
    ({"max_tokens": 5, "max_completion_tokens": 50}, 50, "length"),
    ({"max_tokens": 0}, 1, "length"),
    ({"ignore_eos": True, "max_tokens": None}, 512, "length"),
]


@pytest.mark.parametrize(("fields", "num_tokens", "reason"), CAPS, ids=str)
async def test_token_caps_and_true_finish_reasons(
    server: Served, fields: dict[str, Any], num_tokens: int, reason: str
) -> None:
    plain = await one(server, fields)
    choice = plain.json()["choices"][0]
    assert (choice["finish_reason"], plain.json()["usage"]["completion_tokens"]) == (reason, num_tokens)
    async with connected(server.port) as connection:
        options = {"include_usage": True}
        await connection.send(post(chat_body("mock", stream=True, stream_options=options, **fields)))
        _, stream = await connection.streamed()
    assert stream.text == choice["message"]["content"]
    assert stream.chunks[-2]["choices"][0]["finish_reason"] == reason
    assert stream.chunks[-1]["usage"] == plain.json()["usage"]


async def test_an_answer_that_ends_by_itself_says_stop(server: Served) -> None:
    for number in range(20):
        reply = await one(server, {"messages": said(f"question {number}"), "max_tokens": 200})
        choice = reply.json()["choices"][0]
        if choice["finish_reason"] == "stop":
            assert reply.json()["usage"]["completion_tokens"] < 200
            return
    raise AssertionError("no answer ended by itself")


async def one(server: Served, fields: dict[str, Any]) -> Reply:
    async with connected(server.port) as connection:
        await connection.send(post(chat_body("mock", **fields)))
        return await connection.reply()
