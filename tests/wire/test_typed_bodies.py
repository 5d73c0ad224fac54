"""Whole answers of typed families as streams, judged by the clients' own types."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from llm_runtime.core.errors import BackendError, BackendProtocolError
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.typed_bodies import typed_stream_of_body
from llm_runtime.wire.typed_events import TypedEventRelay
from tests.wire.typed_streams import RESPONSE_USAGE, response

TEXT = {"type": "output_text", "text": "Blue", "annotations": [], "logprobs": []}
OUTPUT: list[dict[str, Any]] = [
    {"id": "rs_1", "type": "reasoning", "summary": []},
    {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [
        TEXT, {"type": "refusal", "refusal": "no"}]},
    {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}',
     "status": "completed"},
]  # fmt: skip
COUNTS = {**RESPONSE_USAGE, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0}}
WHOLE_RESPONSE = response(
    "completed", output=OUTPUT, usage=COUNTS, parallel_tool_calls=True, tool_choice="auto", tools=[]
)
WHOLE_MESSAGE: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
    "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 3},
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "Blue"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
        {"type": "redacted_thinking", "data": "x"},
    ],
}  # fmt: skip


def options(kind: EndpointKind, model: str = "m") -> RelayOptions:
    return RelayOptions(kind=kind, id="ours", created=9, model=model)


def events_of(body: dict[str, Any], kind: EndpointKind, model: str = "m") -> list[dict[str, Any]]:
    reply = typed_stream_of_body(orjson.dumps(body), options(kind, model))
    relay = TypedEventRelay(options(kind, model))
    assert relay.feed(reply.raw) == reply.raw, "our own relay takes it for a stream as it should be"
    assert relay.done
    assert relay.usage == reply.usage
    assert relay.finish_reason == reply.finish_reason
    events = []
    for block in reply.raw.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def test_a_response_has_its_events_in_order_and_the_sdk_knows_them() -> None:
    events = events_of(WHOLE_RESPONSE, EndpointKind.RESPONSES)
    judge: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in events:
        judge.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = {e["type"]: e["delta"] for e in events if e["type"].endswith(".delta")}
    assert deltas == {
        "response.output_text.delta": "Blue",
        "response.refusal.delta": "no",
        "response.function_call_arguments.delta": '{"a":1}',
    }
    assert [e["item"] for e in events if e["type"] == "response.output_item.done"] == OUTPUT
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[-1] == {
        "type": "response.completed", "sequence_number": len(events) - 1, "response": WHOLE_RESPONSE,
    }  # fmt: skip


def test_a_message_adds_up_to_itself() -> None:
    events = events_of(WHOLE_MESSAGE, EndpointKind.MESSAGES)
    assert events[0]["type"] == "message_start"
    assert events[-1] == {"type": "message_stop"}
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                blocks[-1]["input"] = orjson.loads(delta["partial_json"])
            else:
                member = delta["type"].removesuffix("_delta")
                blocks[-1][member] += delta[member]
    assert blocks == WHOLE_MESSAGE["content"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_only_the_shown_name_reaches_clients() -> None:
    for body, kind in ((WHOLE_RESPONSE, EndpointKind.RESPONSES), (WHOLE_MESSAGE, EndpointKind.MESSAGES)):
        shown = orjson.dumps(events_of({**body, "model": "org/inner"}, kind, "outer"))
        assert b"inner" not in shown
        assert b"outer" in shown


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (EndpointKind.RESPONSES, {**WHOLE_RESPONSE, "status": "queued"}),
        (EndpointKind.RESPONSES, {**WHOLE_RESPONSE, "output": [7]}),
        (EndpointKind.RESPONSES, {**WHOLE_RESPONSE, "output": [{"type": "message", "content": 7}]}),
        (EndpointKind.MESSAGES, {**WHOLE_MESSAGE, "content": ["x"]}),
        (EndpointKind.MESSAGES, {"type": "message"}),
    ],
)
def test_what_is_no_answer(kind: EndpointKind, body: dict[str, Any]) -> None:
    with pytest.raises(BackendProtocolError):
        typed_stream_of_body(orjson.dumps(body), options(kind))


def test_an_error_with_status_200_is_an_error() -> None:
    with pytest.raises(BackendError):
        typed_stream_of_body(b'{"error":{"message":"x"}}', options(EndpointKind.RESPONSES))
    with pytest.raises(BackendError):
        typed_stream_of_body(
            b'{"type":"error","error":{"type":"api_error","message":"x"}}', options(EndpointKind.MESSAGES)
        )


def test_a_failed_response_is_passed_on_as_failed() -> None:
    body = {**WHOLE_RESPONSE, "status": "failed", "error": {"code": "x", "message": "y"}}
    reply = typed_stream_of_body(orjson.dumps(body), options(EndpointKind.RESPONSES))
    assert reply.failed
    assert b"event: response.failed" in reply.raw
