"""Chat answers as Messages and Responses answers; the official client's own types are the judge of the
latter."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.facades import facade_for
from llm_runtime.wire.facades.responses_out import ResponsesFacade
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.typed_events import TypedEventRelay

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 5,
    "total_tokens": 25,
    "prompt_tokens_details": {"cached_tokens": 4},
}
HEAD = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 5, "model": "m"}
ASKED = {"model": "m", "input": "Hello", "instructions": "Be brief.", "metadata": {"a": "b"}}


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return b"data: " + orjson.dumps({**HEAD, "choices": [choice], "usage": None}) + b"\n\n"


ROLE = chunk({"role": "assistant", "content": ""})
END = b"data: " + orjson.dumps({**HEAD, "choices": [], "usage": USAGE}) + b"\n\ndata: [DONE]\n\n"


def call(index: int, arguments: str, call_id: str | None = None, name: str | None = None) -> bytes:
    function: dict[str, Any] = {"arguments": arguments}
    whole: dict[str, Any] = {"index": index, "function": function}
    if name is not None:
        function["name"] = name
        whole |= {"id": call_id, "type": "function"}
    return chunk({"tool_calls": [whole]})


TEXT = (ROLE, chunk({"content": "Blue "}), chunk({"content": "whales"}), chunk({}, "stop"), END)
CUT = (*TEXT[:3], chunk({}, "length"), END)
SILENT = (ROLE, chunk({}, "stop"), END)
THOUGHT = (
    ROLE,
    chunk({"reasoning_content": "Hm"}),
    chunk({"reasoning_content": "."}),
    chunk({"content": "Blue"}),
    chunk({}, "stop"),
    END,
)
CALLS = (
    ROLE,
    chunk({"content": "I ask."}),
    call(0, "", "c1", "f"),
    call(0, '{"a":'),
    call(1, "{}", "c2", "g"),
    call(0, "1}"),
    chunk({}, "tool_calls"),
    END,
)
REFUSAL = (ROLE, chunk({"refusal": "No."}), chunk({}, "content_filter"), END)
STREAMS = {
    "text": TEXT, "cut": CUT, "silent": SILENT, "thought": THOUGHT, "calls": CALLS, "refusal": REFUSAL,
}  # fmt: skip

MESSAGES: dict[str, dict[str, Any]] = {
    "text": {"content": "Blue whales"},
    "cut": {"content": "Blue whales"},
    "silent": {"content": ""},
    "thought": {"content": "Blue", "reasoning_content": "Hm."},
    "calls": {
        "content": "I ask.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    },
    "refusal": {"content": None, "refusal": "No."},
}
FINISHES = {"cut": "length", "calls": "tool_calls", "refusal": "content_filter"}


def plain_chat(case: str) -> bytes:
    message = {"role": "assistant", "refusal": None, **MESSAGES[case]}
    finish = FINISHES.get(case, "stop")
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return orjson.dumps({**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE})


def events(raw: bytes) -> list[dict[str, Any]]:
    """Taken apart; each is framed under its own type."""
    found = []
    for block in raw.split(b"\n\n")[:-1]:
        head, _, data = block.partition(b"\ndata: ")
        event = orjson.loads(data)
        assert head == b"event: " + event["type"].encode()
        found.append(event)
    return found


def responses() -> ResponsesFacade:
    return ResponsesFacade(wall=lambda: 9.5)


def streamed(kind: EndpointKind, case: str, cuts: list[int] | None = None) -> list[dict[str, Any]]:
    facade = responses() if kind is EndpointKind.RESPONSES else facade_for(kind)
    assert facade is not None
    writer = facade.writer(ASKED)
    whole = b"".join(STREAMS[case])
    ends = sorted({*(cuts or []), len(whole)})
    out = b"".join(writer.feed(whole[a:b]) for a, b in zip([0, *ends], ends, strict=False))
    if cuts is None:
        by_event = responses() if kind is EndpointKind.RESPONSES else facade
        writer = by_event.writer(ASKED)
        assert b"".join(map(writer.feed, STREAMS[case])) == out
    return events(out)


CASES = pytest.mark.parametrize("case", STREAMS)


@CASES
def test_the_clients_own_types_accept_every_event(case: str) -> None:
    found = streamed(EndpointKind.RESPONSES, case)
    for event in found:
        EVENTS.validate_python(event, strict=False)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[0]["type"] == "response.created"
    assert found[1]["type"] == "response.in_progress"
    last = found[-1]["response"]
    expected = "incomplete" if case in ("cut", "refusal") else "completed"
    assert (found[-1]["type"], last["status"]) == (f"response.{expected}", expected)


@CASES
def test_a_response_is_the_same_plain_and_streamed(case: str) -> None:
    plain = orjson.loads(responses().reply(plain_chat(case), ASKED))
    Response.model_validate(plain)
    assert streamed(EndpointKind.RESPONSES, case)[-1]["response"] == plain
    assert plain["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 25,
    }
    assert plain["completed_at"] == (None if plain["status"] == "incomplete" else 9)
    assert (plain["instructions"], plain["metadata"]) == ("Be brief.", {"a": "b"})
    assert plain["store"] is False


@CASES
def test_items_of_a_response_add_up(case: str) -> None:
    """What the deltas say is what the items at the end say."""
    found = streamed(EndpointKind.RESPONSES, case)
    texts: dict[str, str] = {}
    for event in found:
        if event["type"].endswith(".delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert sorted(done, key=lambda item: str(item["id"])) == sorted(
        found[-1]["response"]["output"], key=lambda item: str(item["id"])
    )
    for item in done:
        said = item.get("arguments")
        if said is None:
            (part,) = item["content"]
            said = part.get("text", part.get("refusal"))
        assert texts.get(item["id"], "") == said
    opened = [e["item"]["id"] for e in found if e["type"] == "response.output_item.added"]
    assert len(opened) == len(set(opened)) == len(done)


def test_items_of_a_response() -> None:
    def kinds(case: str) -> list[tuple[str, str]]:
        return [
            (item["type"], item["status"])
            for item in orjson.loads(responses().reply(plain_chat(case), ASKED))["output"]
        ]

    assert kinds("text") == [("message", "completed")]
    assert kinds("cut") == [("message", "incomplete")]
    assert kinds("silent") == [("message", "completed")]
    assert kinds("thought") == [("reasoning", "completed"), ("message", "completed")]
    assert kinds("calls") == [("message", "completed")] + [("function_call", "completed")] * 2
    calls = orjson.loads(responses().reply(plain_chat("calls"), ASKED))["output"][1:]
    assert [(c["call_id"], c["name"], c["arguments"]) for c in calls] == [
        ("c1", "f", '{"a":1}'),
        ("c2", "g", "{}"),
    ]


def accumulated(found: list[dict[str, Any]]) -> dict[str, Any]:
    """A message put together as a client does."""
    message: dict[str, Any] = {}
    arguments: dict[int, str] = {}
    for event in found:
        kind = event["type"]
        if kind == "message_start":
            message = {**event["message"], "content": []}
        elif kind == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
            else:
                member = {"text_delta": "text", "thinking_delta": "thinking"}[delta["type"]]
                block[member] += delta[member]
        elif kind == "message_delta":
            message.update(event["delta"])
            message["usage"] = {**message["usage"], **event["usage"]}
    for index, text in arguments.items():
        message["content"][index]["input"] = orjson.loads(text)
    return message


@CASES
def test_a_message_is_the_same_plain_and_streamed(case: str) -> None:
    facade = facade_for(EndpointKind.MESSAGES)
    assert facade is not None
    plain = orjson.loads(facade.reply(plain_chat(case), {}))
    found = streamed(EndpointKind.MESSAGES, case)
    assert accumulated(found) == plain
    assert found[0]["type"] == "message_start"
    assert [event["type"] for event in found[-2:]] == ["message_delta", "message_stop"]
    started = [event["index"] for event in found if event["type"] == "content_block_start"]
    stopped = [event["index"] for event in found if event["type"] == "content_block_stop"]
    assert started == list(range(len(started)))
    assert sorted(stopped) == started
    assert plain["usage"]["input_tokens"] == 16
    assert plain["usage"]["cache_read_input_tokens"] == 4
    assert plain["usage"]["output_tokens"] == 5


def test_blocks_and_reasons_of_a_message() -> None:
    facade = facade_for(EndpointKind.MESSAGES)
    assert facade is not None

    def told(case: str) -> tuple[list[str], str]:
        message = orjson.loads(facade.reply(plain_chat(case), {}))
        return [block["type"] for block in message["content"]], message["stop_reason"]

    assert told("text") == (["text"], "end_turn")
    assert told("cut") == (["text"], "max_tokens")
    assert told("silent") == (["text"], "end_turn")
    assert told("thought") == (["thinking", "text"], "end_turn")
    assert told("calls") == (["text", "tool_use", "tool_use"], "tool_use")
    assert told("refusal") == (["text"], "refusal")


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "7"])
def test_arguments_that_are_no_object_become_an_empty_one(arguments: str) -> None:
    facade = facade_for(EndpointKind.MESSAGES)
    assert facade is not None
    chat = orjson.loads(plain_chat("calls"))
    chat["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = arguments
    message = orjson.loads(facade.reply(orjson.dumps(chat), {}))
    assert message["content"][1]["input"] == {}


@pytest.mark.parametrize("kind", [EndpointKind.MESSAGES, EndpointKind.RESPONSES])
@given(data=st.data())
def test_output_does_not_depend_on_how_the_chat_was_cut(kind: EndpointKind, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(sorted(STREAMS)))
    length = len(b"".join(STREAMS[case]))
    cuts = data.draw(st.lists(st.integers(1, length), max_size=12))
    assert streamed(kind, case, cuts) == streamed(kind, case)


@pytest.mark.parametrize("kind", [EndpointKind.MESSAGES, EndpointKind.RESPONSES])
@CASES
def test_another_gateway_of_ours_takes_it_for_whole(kind: EndpointKind, case: str) -> None:
    facade = facade_for(kind)
    assert facade is not None
    raw = b"".join(map(facade.writer(ASKED).feed, STREAMS[case]))
    relay = TypedEventRelay(RelayOptions(kind=kind, id="x", created=1, model="m"))
    assert relay.feed(raw) == raw
    assert relay.done
    assert relay.usage is not None
    assert (relay.usage.prompt_tokens, relay.usage.completion_tokens) == (20, 5)
