from __future__ import annotations

from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import BackendError, BackendProtocolError, InvalidRequest
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.assemble import ReplyAssembler
from llm_runtime.wire.options import RelayOptions
from tests.wire.scenarios import SCENARIOS, Scenario
from tests.wire.sdk import validate_body

OPTIONS = RelayOptions(kind=EndpointKind.CHAT, id="ours", created=1000, model="m", prompt_tokens_estimate=6)


def event(delta: dict[str, Any], finish: str | None = None, **choice: Any) -> bytes:
    body = {
        "id": "e",
        "created": 5,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **choice}],
    }
    return b"data: " + orjson.dumps(body) + b"\n\n"


def assemble(*events: bytes) -> dict[str, Any]:
    assembler = ReplyAssembler(OPTIONS)
    for one in events:
        assembler.feed(one)
    assembler.eof()
    return validate_body(EndpointKind.CHAT, assembler.body())


STOP = event({}, "stop")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_recorded_streams(scenario: Scenario) -> None:
    assembler = ReplyAssembler(scenario.options())
    for start in range(0, len(scenario.stream), 97):
        assembler.feed(scenario.stream[start : start + 97])
    assert assembler.done
    body = validate_body(scenario.kind, assembler.body())
    assert body == orjson.loads(scenario.golden("reply.json").read_bytes())
    assert len(body["choices"]) == scenario.num_choices
    assert body["model"] == "alias"
    assert assembler.usage is not None
    assert not assembler.usage.estimated


def test_tokens_and_progress_are_told_while_it_grows() -> None:
    scenario = SCENARIOS[0]
    assembler = ReplyAssembler(scenario.options())
    raw = [part + b"\n\n" for part in scenario.stream.split(b"\n\n")]
    assembler.feed(raw[0])
    assert not assembler.has_token
    assert assembler.progress is not None
    assert assembler.progress.total == 42
    for part in raw[1:5]:
        assembler.feed(part)
    assert assembler.has_token
    assert assembler.num_token_events == 1
    assert assembler.usage is None
    assert assembler.spent() == Usage(42, 1, 0, estimated=True)


def test_calls_are_merged_by_index_and_ids_said_twice_are_one() -> None:
    def call(index: int, arguments: str, **members: Any) -> bytes:
        function = {"arguments": arguments, **({"name": members.pop("name")} if "name" in members else {})}
        return event({"tool_calls": [{"index": index, "function": function, **members}]})

    body = assemble(
        call(1, "{", id="c2", type="function", name="g"),
        call(0, "", id="c1", type="function", name="f"),
        call(0, '{"a":', id="c1", type="function", name="f"),
        call(1, "}"),
        call(0, "1}"),
        event({}, "tool_calls"),
    )
    message = body["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"function": {"arguments": '{"a":1}', "name": "f"}, "id": "c1", "type": "function"},
        {"function": {"arguments": "{}", "name": "g"}, "id": "c2", "type": "function"},
    ]


def test_logprobs_refusal_and_unknown_members_are_merged() -> None:
    entry = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    body = assemble(
        event({"refusal": "I ", "x": {"k": "1", "n": [1]}}, logprobs={"content": [entry]}),
        event(
            {"refusal": "can't", "x": {"k": "2", "n": [2]}}, logprobs={"content": [entry], "refusal": None}
        ),
        event({"annotations": None, "flag": 1}, stop_reason=7),
        STOP,
    )
    (choice,) = body["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "",
        "refusal": "I can't",
        "x": {"k": "12", "n": [1, 2]},
        "annotations": None,
        "flag": 1,
    }
    assert choice["logprobs"] == {"content": [entry, entry], "refusal": None}
    assert choice["stop_reason"] == 7


def test_usage_unsaid_is_estimated() -> None:
    assembler = ReplyAssembler(OPTIONS)
    assembler.feed(event({"content": "a"}) + event({"content": "b"}) + STOP)
    assembler.eof()
    assert assembler.usage == Usage(6, 2, 0, estimated=True)
    assert orjson.loads(assembler.body())["usage"]["total_tokens"] == 8


@pytest.mark.parametrize(
    "stream", [b"", event({"content": "a"}), event({"content": "a"}) + STOP[:-9], b": ping\n\n"]
)
def test_a_cut_stream_is_no_reply(stream: bytes) -> None:
    assembler = ReplyAssembler(OPTIONS)
    assembler.feed(stream)
    with pytest.raises(BackendError) as caught:
        assembler.eof()
    assert caught.value.reason == "backend_stream_truncated"
    assert not assembler.done


def test_done_without_a_finish_is_no_reply() -> None:
    with pytest.raises(BackendError):
        ReplyAssembler(OPTIONS).feed(event({"content": "a"}) + b"data: [DONE]\n\n")


def test_errors_are_raised() -> None:
    with pytest.raises(InvalidRequest):
        ReplyAssembler(OPTIONS).feed(b'data: {"error":{"code":400,"message":"no"}}\n\n')
    with pytest.raises(BackendProtocolError):
        ReplyAssembler(OPTIONS).feed(event({"tool_calls": ["x"]}))
    page = ReplyAssembler(OPTIONS)
    page.feed(b"<html>\n")
    with pytest.raises(BackendProtocolError):
        page.eof()
