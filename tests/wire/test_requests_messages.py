from __future__ import annotations

from typing import Any

import pytest

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.wire.messages import refuse_parts
from llm_runtime.wire.requests import parse_chat


def chat(**members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}


def refusal(body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(body)
    error = caught.value
    assert len(error.message) < 300
    assert "Input should" not in error.message
    return error


@pytest.mark.parametrize(
    ("messages", "param", "reason"),
    [
        ([], "messages", "empty_array"),
        (None, "messages", "missing_required_parameter"),
        ("hi", "messages", "invalid_type"),
        ({}, "messages", "invalid_type"),
        ([None], "messages[0]", "invalid_type"),
        (["hi"], "messages[0]", "invalid_type"),
        ([{"content": "hi"}], "messages[0].role", "missing_required_parameter"),
        ([{"role": "wizard", "content": "hi"}], "messages[0].role", "invalid_value"),
        ([{"role": None, "content": "hi"}], "messages[0].role", "invalid_value"),
        ([{"role": 7, "content": "hi"}], "messages[0].role", "invalid_value"),
        ([{"role": "user", "content": 7}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": {"text": "x"}}], "messages[0].content", "invalid_type"),
        ([{"role": "user"}], "messages[0].content", "missing_required_parameter"),
        ([{"role": "user", "content": None}], "messages[0].content", "missing_required_parameter"),
        ([{"role": "tool", "content": None}], "messages[0].content", "missing_required_parameter"),
        ([{"role": "assistant", "content": None}], "messages[0].content", "missing_required_parameter"),
        (
            [{"role": "assistant", "content": None, "tool_calls": []}],
            "messages[0].content",
            "missing_required_parameter",
        ),
        ([{"role": "user", "content": []}], "messages[0].content", "empty_array"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "invalid_type"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]", "invalid_type"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0]", "invalid_type"),
        (
            [
                {"role": "user", "content": "ok"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}],
                },
            ],
            "messages[1].content[1]",
            "unsupported_content_part",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}],
            "messages[0].tool_calls[0].function.arguments",
            "invalid_type",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["m", "no-such-model"])
def test_faults_of_the_conversation(messages: Any, param: str, reason: str, stream: bool, model: str) -> None:
    error = refusal({"model": model, "messages": messages, "stream": stream})
    assert (error.param, error.reason) == (param, reason)


def test_messages_missing() -> None:
    assert refusal({"model": "m"}).param == "messages"


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}, {"model": 7}, {"model": "m" * 10_240}])
def test_the_model_must_be_a_name(body: dict[str, Any]) -> None:
    error = refusal({"messages": [{"role": "user", "content": "x"}], **body})
    assert error.param == "model"


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_text_parts_on_every_role(role: str) -> None:
    parts = [{"type": "text", "text": "Sky "}, {"type": "text", "text": "colour?"}]
    parsed = parse_chat({"model": "m", "messages": [{"role": role, "content": parts}]})
    assert parsed.body["messages"] == [{"role": role, "content": parts}]
    assert parsed.prompt_bytes == len("Sky colour?")
    assert parsed.part_types == {"text"}


@pytest.mark.parametrize(
    "message",
    [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}],
        },
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": ""},
    ],
)
def test_an_assistant_may_have_no_content(message: dict[str, Any]) -> None:
    parsed = parse_chat({"model": "m", "messages": [message]})
    assert parsed.body["messages"] == [message]


def test_parts_an_engine_declares_pass_and_are_reported() -> None:
    body = chat(
        messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    )
    assert parse_chat(body, accept_parts=frozenset({"text", "image_url"})).part_types == {"image_url"}
    later = parse_chat(body, accept_parts=None)
    assert later.part_types == {"image_url"}
    with pytest.raises(InvalidRequest) as caught:
        refuse_parts(later.body["messages"], frozenset({"text"}))
    assert caught.value.param == "messages[0].content[0]"
