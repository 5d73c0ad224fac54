"""Messages and Responses requests as the chat requests that stand in for them."""

from __future__ import annotations

from typing import Any

import pytest

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.facades import facade_for
from llm_runtime.wire.passed_requests import parse_messages, parse_responses
from llm_runtime.wire.requests import parse_chat

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
ARGUMENTS = '{"city":"Oslo"}'


def chat_of(kind: EndpointKind, body: dict[str, Any]) -> dict[str, Any]:
    """Through the family's own parser, and what comes out through the chat's."""
    facade = facade_for(kind)
    assert facade is not None
    parse = parse_messages if kind is EndpointKind.MESSAGES else parse_responses
    chat = facade.chat_body(parse(body).body)
    parse_chat(chat, accept_parts=None)
    return chat


def of_messages(**body: Any) -> dict[str, Any]:
    return chat_of(EndpointKind.MESSAGES, {"model": "m", "max_tokens": 9, "messages": HELLO, **body})


def of_response(**body: Any) -> dict[str, Any]:
    return chat_of(EndpointKind.RESPONSES, {"model": "m", "input": "Hello", **body})


def test_only_these_families_have_a_facade() -> None:
    have = {kind for kind in EndpointKind if facade_for(kind) is not None}
    assert have == {EndpointKind.MESSAGES, EndpointKind.RESPONSES}


def test_the_least() -> None:
    assert of_messages() == {"model": "m", "max_tokens": 9, "messages": HELLO}
    assert of_response() == {"model": "m", "messages": HELLO}


def test_messages_all_at_once() -> None:
    chat = of_messages(
        system=[{"type": "text", "text": "Be"}, {"type": "text", "text": "brief.", "cache_control": {}}],
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "AA=="},
                    },
                    {"type": "image", "source": {"type": "url", "url": "http://h/x.png"}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I ask."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Well?"},
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "4"}]},
                    {"type": "tool_result", "tool_use_id": "t2"},
                ],
            },
        ],
        temperature=0.5,
        top_k=3,
        stop_sequences=["x"],
        tools=[{"name": "weather", "description": "Now", "input_schema": SCHEMA, "cache_control": {}}],
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        metadata={"user_id": "u"},
        thinking={"type": "disabled"},
        unknown=1,
    )
    function = {"name": "weather", "arguments": ARGUMENTS}
    assert chat == {
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.5,
        "top_k": 3,
        "stop": ["x"],
        "user": "u",
        "unknown": 1,
        "tools": [
            {
                "type": "function",
                "function": {"name": "weather", "description": "Now", "parameters": SCHEMA},
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "messages": [
            {"role": "system", "content": "Be\nbrief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                    {"type": "image_url", "image_url": {"url": "http://h/x.png"}},
                ],
            },
            {
                "role": "assistant",
                "content": "I ask.",
                "tool_calls": [{"id": "t1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "4"},
            {"role": "tool", "tool_call_id": "t2", "content": ""},
            {"role": "user", "content": "Well?"},
        ],
    }


@pytest.mark.parametrize(("given", "chat"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_messages_tool_choice(given: str, chat: str) -> None:
    assert of_messages(tool_choice={"type": given})["tool_choice"] == chat


def test_response_all_at_once() -> None:
    chat = of_response(
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "Politely."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look"},
                    {"type": "input_image", "image_url": "http://h/x.png", "detail": "low"},
                ],
            },
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I ask."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": ARGUMENTS},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "4"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "5"}],
            },
        ],
        max_output_tokens=9,
        temperature=0.5,
        tools=[{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}},
        reasoning={"effort": "low", "summary": "auto"},
        metadata={"a": "b"},
        store=True,
        truncation="disabled",
        include=["reasoning.encrypted_content"],
        stream_options={"include_obfuscation": False},
        unknown=1,
    )
    function = {"name": "weather", "arguments": ARGUMENTS}
    assert chat == {
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.5,
        "unknown": 1,
        "metadata": {"a": "b"},
        "reasoning_effort": "low",
        "parallel_tool_calls": False,
        "tools": [
            {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
        ],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": SCHEMA, "strict": True},
        },
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "Politely."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {"type": "image_url", "image_url": {"url": "http://h/x.png", "detail": "low"}},
                ],
            },
            {
                "role": "assistant",
                "content": "I ask.",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": function},
                    {
                        "id": "c2",
                        "type": "function",
                        "function": {"name": "weather", "arguments": "{}"},
                    },
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
            {"role": "tool", "tool_call_id": "c2", "content": "5"},
        ],
    }


def test_a_call_without_words_before_it() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    answer = {"type": "function_call_output", "call_id": "c1", "output": "4"}
    messages = of_response(input=[HELLO[0], call, answer])["messages"]
    assert messages[1]["content"] is None
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("text", "chat"),
    [
        ({}, {}),
        ({"format": {"type": "text"}, "verbosity": "low"}, {"verbosity": "low"}),
        ({"format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
    ],
)
def test_response_text(text: dict[str, Any], chat: dict[str, Any]) -> None:
    assert of_response(text=text) == {**of_response(), **chat}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


REFUSED_MESSAGES: list[tuple[dict[str, Any], str]] = [
    (user({"type": "document", "source": {}}), "messages[0].content[0]"),
    (user({"type": "text"}), "messages[0].content[0].text"),
    (user({"type": "image"}), "messages[0].content[0].source"),
    (user({"type": "image", "source": {"type": "file"}}), "messages[0].content[0].source.type"),
    (user({"type": "tool_result", "content": "x"}), "messages[0].content[0].tool_use_id"),
    (
        user({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}),
        "messages[0].content[0].content[0]",
    ),
    ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ({"metadata": {"user_id": 7}}, "metadata.user_id"),
]

REFUSED_RESPONSES: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "r"}, "previous_response_id"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
    ({"text": {"format": "json"}}, "text.format"),
    ({"input": [{"type": "item_reference", "id": "i"}]}, "input[0]"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
]


@pytest.mark.parametrize(
    ("kind", "change", "param"),
    [
        *((EndpointKind.MESSAGES, *case) for case in REFUSED_MESSAGES),
        *((EndpointKind.RESPONSES, *case) for case in REFUSED_RESPONSES),
    ],
)
def test_what_a_chat_cannot_express_is_refused_by_its_own_name(
    kind: EndpointKind, change: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        (of_messages if kind is EndpointKind.MESSAGES else of_response)(**change)
    assert caught.value.param == param
