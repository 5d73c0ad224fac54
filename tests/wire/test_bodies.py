from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime.core.errors import (
    BackendError,
    BackendProtocolError,
    BackendUnavailable,
    InvalidRequest,
    LLMRuntimeError,
)
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.bodies import normalise_body, stream_of_body
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.usage import read_usage, usage_object
from tests.wire.builders import changed
from tests.wire.sdk import read_stream, texts, validate_body, validate_chunk

CHAT = RelayOptions(kind=EndpointKind.CHAT, id="ours", created=1000, model="alias")
TEXT = changed(CHAT, kind=EndpointKind.COMPLETIONS, translate_logprobs=True)
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def reply(**members: Any) -> dict[str, Any]:
    """A plain reply in llama.cpp's shape: no logprobs, no refusal, timings, the engine's model."""
    choice = {"finish_reason": "length", "index": 0, "message": {"role": "assistant", "content": "Harry"}}
    return {
        "choices": [choice],
        "created": 5,
        "model": "/models/real.gguf",
        "object": "chat.completion",
        "usage": {
            "completion_tokens": 3,
            "prompt_tokens": 33,
            "prompt_tokens_details": {"cached_tokens": 24},
        },
        "id": "chatcmpl-1",
        "timings": {"cache_n": 24},
        **members,
    }


def test_required_keys_are_filled_and_engine_members_taken_out() -> None:
    plain = normalise_body(orjson.dumps(reply()), CHAT)
    body = validate_body(EndpointKind.CHAT, plain.raw)
    assert body["model"] == "alias"
    assert body["id"] == "chatcmpl-1"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Harry", "refusal": None}
    assert body["usage"]["total_tokens"] == 36
    assert "timings" not in body
    assert (plain.usage, plain.finish_reason) == (Usage(33, 3, 24), "length")


@pytest.mark.parametrize(("member", "value"), [("id", ""), ("id", None), ("created", None), ("created", 0)])
def test_a_missing_envelope_is_ours(member: str, value: Any) -> None:
    body = validate_body(EndpointKind.CHAT, normalise_body(orjson.dumps(reply(**{member: value})), CHAT).raw)
    assert body[member] == {"id": "ours", "created": 1000}[member]


def test_usage_unsaid_stays_unsaid() -> None:
    plain = normalise_body(orjson.dumps(reply(usage=None)), CHAT)
    assert plain.usage is None
    assert "usage" not in orjson.loads(plain.raw)


def test_tool_calls_and_unknown_members_survive() -> None:
    message = {"role": "assistant", "tool_calls": [CALL], "x": 1}
    raw = orjson.dumps(
        reply(choices=[{"finish_reason": "tool_calls", "message": message}], service_tier="flex")
    )
    body = validate_body(EndpointKind.CHAT, normalise_body(raw, CHAT).raw)
    assert body["choices"][0]["message"] == {**message, "content": None, "refusal": None}
    assert body["service_tier"] == "flex"


def test_legacy_logprobs_are_translated() -> None:
    entries = [
        {"token": t, "logprob": -1.0, "top_logprobs": [{"token": t, "logprob": -1.0}]} for t in (" a", "b")
    ]
    choice = {"index": 0, "text": " ab", "logprobs": {"content": entries}, "finish_reason": "stop"}
    body = validate_body(
        EndpointKind.COMPLETIONS, normalise_body(orjson.dumps(reply(choices=[choice])), TEXT).raw
    )
    assert body["choices"][0]["logprobs"] == {
        "tokens": [" a", "b"],
        "token_logprobs": [-1.0, -1.0],
        "top_logprobs": [{" a": -1.0}, {"b": -1.0}],
        "text_offset": [0, 2],
    }


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", BackendProtocolError),
        (b"<html>502 at 10.0.0.1:8000</html>", BackendProtocolError),
        (orjson.dumps(reply())[:60], BackendProtocolError),
        (b"[]", BackendProtocolError),
        (b'"x"', BackendProtocolError),
        (b"{}", BackendProtocolError),
        (b'{"choices":[]}', BackendProtocolError),
        (b'{"choices":[7]}', BackendProtocolError),
        (b'{"choices":[{"finish_reason":"stop"}]}', BackendProtocolError),
        (b'{"choices":[{"message":{"content":"x"}}]}', BackendError),
        (b'{"choices":[{"message":{"content":"x"},"finish_reason":"abort"}]}', BackendError),
        (b'{"error":{"message":"boom"}}', BackendError),
        (b'{"error":{"message":"boom","code":400}}', InvalidRequest),
        (b'{"error":{"message":"loading","code":503}}', BackendUnavailable),
    ],
)
@pytest.mark.parametrize("read", [normalise_body, stream_of_body])
def test_what_is_no_reply(raw: bytes, expected: type[LLMRuntimeError], read: Any) -> None:
    with pytest.raises(expected) as caught:
        read(raw, CHAT)
    assert "10.0.0.1" not in caught.value.message


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_plain_reply_as_a_stream(include_usage: bool) -> None:
    choices = [
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "Harry"}},
        {"finish_reason": "tool_calls", "index": 1, "message": {"content": None, "tool_calls": [CALL]}},
    ]
    plain = stream_of_body(orjson.dumps(reply(choices=choices)), changed(CHAT, include_usage=include_usage))
    events = read_stream(plain.raw)
    for event in events:
        validate_chunk(EndpointKind.CHAT, event)
        assert ("usage" in event) is include_usage
    if include_usage:
        assert events.pop()["usage"]["total_tokens"] == 36
    assert texts(events)[0] == {"role": "assistant", "content": "Harry"}
    assert events[2]["choices"][0]["delta"]["tool_calls"] == [{"index": 0, **CALL}]
    assert [e["choices"][0]["finish_reason"] for e in events] == [None, "stop", None, "tool_calls"]


def test_a_plain_completion_as_a_stream() -> None:
    raw = orjson.dumps(reply(choices=[{"index": 0, "text": "abc", "finish_reason": "stop"}]))
    events = read_stream(stream_of_body(raw, TEXT).raw)
    for event in events:
        validate_chunk(EndpointKind.COMPLETIONS, event)
    assert [e["choices"][0]["text"] for e in events] == ["abc", ""]


WHOLE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 5,
    "model": "alias",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Harry", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": None,
    },
    "service_tier": None,
}


@pytest.mark.parametrize("raw", [orjson.dumps(WHOLE), orjson.dumps(WHOLE, option=orjson.OPT_INDENT_2)])
def test_a_reply_that_needs_nothing_goes_on_as_read(raw: bytes) -> None:
    plain = normalise_body(raw, CHAT)
    assert plain.raw is raw
    assert (plain.usage, plain.finish_reason) == (Usage(3, 4, 0), "stop")


ODD: list[Any] = [
    None,
    0,
    1,
    5,
    -1,
    True,
    1.0,
    "",
    "x",
    "stop",
    "eos",
    "assistant",
    [],
    {},
    {"cached_tokens": 2},
]
MEMBERS = st.dictionaries(
    st.sampled_from(["id", "object", "created", "model", "error", "usage", "timings", "x"]),
    st.sampled_from(ODD),
    max_size=3,
)
CHOICE_MEMBERS = st.dictionaries(
    st.sampled_from(["index", "logprobs", "finish_reason", "x"]), st.sampled_from(ODD), max_size=2
)
MESSAGE_MEMBERS = st.dictionaries(
    st.sampled_from(["role", "content", "refusal", "tool_calls"]), st.sampled_from(ODD), max_size=2
)
COUNTS = st.dictionaries(
    st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"]),
    st.sampled_from(ODD),
    max_size=4,
)
ABSENT = st.sets(st.sampled_from(["id", "object", "created", "model", "usage", "service_tier"]), max_size=3)


def in_full(body: dict[str, Any], options: RelayOptions) -> dict[str, Any]:
    """What the client gets of a reply, put together member by member."""
    shaped: dict[str, Any] = {
        "id": body["id"] if isinstance(body.get("id"), str) and body["id"] else options.id,
        "object": "chat.completion",
        "created": body["created"] if type(body.get("created")) is int and body["created"] > 0 else 1000,
        "model": options.model,
        "choices": [],
        **{key: body[key] for key in ("service_tier", "x") if key in body},
    }
    for position, choice in enumerate(body["choices"]):
        index = choice.get("index")
        reason = "stop" if choice["finish_reason"] == "eos" else choice["finish_reason"]
        message = {"content": None, "refusal": None, **choice["message"], "role": "assistant"}
        fixed = {"index": index if type(index) is int else position, "finish_reason": reason}
        shaped["choices"].append({"logprobs": None, **choice, **fixed, "message": message})
    usage = read_usage(body.get("usage"))
    if usage is not None:
        total = usage.prompt_tokens + usage.completion_tokens
        shaped["usage"] = {**usage_object(usage), **body["usage"], "total_tokens": total}
    return shaped


@given(MEMBERS, CHOICE_MEMBERS, MESSAGE_MEMBERS, COUNTS | st.none(), ABSENT)
@settings(max_examples=400, deadline=None)
def test_what_was_changed_and_what_goes_on_as_read_say_the_same(
    members: dict[str, Any],
    choice: dict[str, Any],
    message: dict[str, Any],
    counts: dict[str, Any] | None,
    absent: set[str],
) -> None:
    first: dict[str, Any] = {**WHOLE["choices"][0], **choice}
    first["message"] = {"role": "assistant", "content": "Harry", **message}
    body: dict[str, Any] = {**WHOLE, "choices": [first], **members}
    if counts is not None:
        body["usage"] = {**WHOLE["usage"], **counts}
    for key in absent - members.keys():
        body.pop(key, None)
    raw = orjson.dumps(body)
    try:
        plain = normalise_body(raw, CHAT)
    except BackendError:
        assert body.get("error") or first["finish_reason"] not in ("stop", "eos")
        return
    expected = in_full(body, CHAT)
    # Through text, so that 1 and True are two things.
    assert orjson.dumps(orjson.loads(plain.raw), option=orjson.OPT_SORT_KEYS) == orjson.dumps(
        expected, option=orjson.OPT_SORT_KEYS
    )
    assert (plain.raw is raw) is (orjson.loads(raw) == expected and "error" not in body)
