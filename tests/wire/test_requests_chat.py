from __future__ import annotations

import copy
import timeit
from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.wire.json import parse_body
from llm_runtime.wire.requests import parse_chat
from llm_runtime.wire.schemas.chat import ChatRequest

SPEC_FIELDS = [
    "messages", "model", "audio", "frequency_penalty", "function_call", "functions", "logit_bias",
    "logprobs", "max_completion_tokens", "max_tokens", "metadata", "modalities", "moderation", "n",
    "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "response_format",
    "safety_identifier", "seed", "service_tier", "stop", "store", "stream", "stream_options",
    "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
    "web_search_options",
]  # fmt: skip


def chat(**members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}


def refusal(body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(body)
    error = caught.value
    assert len(error.message) < 300
    assert "Input should" not in error.message
    return error


def test_every_field_of_the_description_is_known() -> None:
    assert len(SPEC_FIELDS) == 37
    assert set(SPEC_FIELDS) <= set(ChatRequest.model_fields)


def test_a_full_request_passes_and_keeps_its_members() -> None:
    body = chat(
        audio={"voice": "alloy", "format": "wav"},
        frequency_penalty=-2,
        function_call="none",
        functions=[{"name": "f", "description": "d", "parameters": {"type": "object"}}],
        logit_bias={"50256": -100, "1": 0.5},
        logprobs=True,
        max_completion_tokens=7,
        metadata={"k": "v"},
        modalities=["text"],
        moderation={"model": "x"},
        n=2,
        parallel_tool_calls=True,
        prediction={"type": "content", "content": [{"type": "text", "text": "p"}]},
        presence_penalty=2,
        prompt_cache_key="key",
        prompt_cache_options={"mode": "auto", "ttl": "5m"},
        prompt_cache_retention="24h",
        reasoning_effort="none",
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": [None]}}},
        safety_identifier="s" * 128,
        seed=-1,
        service_tier="flex",
        stop=["a", "b", "c", "d"],
        store=True,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False, "unknown": 1},
        temperature=0,
        tool_choice={"type": "function", "function": {"name": "f"}},
        tools=[
            {"type": "function", "function": {"name": "f", "parameters": {"default": None}}},
            {"type": "custom", "custom": {"name": "c", "format": {"type": "text"}}},
        ],
        top_logprobs=20,
        top_p=0,
        user="u",
        verbosity="low",
        web_search_options={"search_context_size": "low"},
        top_k=40,
        min_p=0.05,
        repetition_penalty=1.1,
        min_tokens=1,
        ignore_eos=True,
        stop_token_ids=[2],
        cache_salt="salt",
        chat_template_kwargs={"enable_thinking": False},
    )
    before = copy.deepcopy(body)
    parsed = parse_chat(body)
    assert body == before
    assert (parsed.num_slots, parsed.max_tokens, parsed.priority, parsed.service_tier) == (2, 7, 8, "flex")
    assert parsed.stream
    assert parsed.include_usage
    assert parsed.extras == {}
    ours = {"service_tier", "stream", "stream_options", "max_completion_tokens"}
    expected = {key: value for key, value in body.items() if key not in ours} | {"max_tokens": 7}
    assert parsed.body == expected


OPTIONAL = sorted(set(ChatRequest.model_fields) - {"model", "messages"})


@pytest.mark.parametrize("name", [*OPTIONAL, "something_unknown"])
def test_null_means_absent(name: str) -> None:
    assert parse_chat(chat(**{name: None})) == parse_chat(chat())


def test_all_nulls_together_mean_absent() -> None:
    assert parse_chat(chat(**dict.fromkeys(OPTIONAL))) == parse_chat(chat())
    message = dict.fromkeys(("name", "tool_calls", "function_call", "refusal", "audio", "tool_call_id"))
    parsed = parse_chat({"model": "m", "messages": [{"role": "user", "content": "hi", **message}]})
    assert parsed.body == parse_chat(chat()).body


def test_null_inside_schemas_is_kept() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"enum": [None], "default": None}}}
    assert parse_chat(chat(tools=[tool])).body["tools"] == [tool]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "0.7"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": -0.01}, "top_p"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"frequency_penalty": 2.01}, "frequency_penalty"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 1e18}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_completion_tokens": True}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"priority": 10}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": 2.5}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"priority": 1e9}, "priority"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 3]}, "stop"),
        ({"logit_bias": {"hello": 1}}, "logit_bias.hello"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": []}, "logit_bias"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata.k"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"safety_identifier": "s" * 129}, "safety_identifier"),
        ({"user": 7}, "user"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": 3}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": 1}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        ({"functions": []}, "functions"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids[0]"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
    ],
)
def test_out_of_range_and_mistyped_fields(members: dict[str, Any], param: str) -> None:
    assert refusal(chat(**members)).param == param


@pytest.mark.parametrize(
    "members",
    [
        {"top_p": 0},
        {"top_p": 1},
        {"temperature": 2},
        {"seed": -1},
        {"seed": 2**63 - 1},
        {"max_tokens": 2**31 - 1},
        {"n": 128},
        {"stop": "x"},
        {"top_logprobs": 0},
        {"priority": 0},
        {"priority": 9},
        {"stream": True, "stream_options": {}},
        {"stream": True, "stream_options": {"unknown": 1}},
        {"tools": []},
        {"function_call": {"name": "f"}},
        {"tool_choice": "required"},
    ],
)
def test_the_ends_of_the_ranges_are_inside(members: dict[str, Any]) -> None:
    parse_chat(chat(**members))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 50, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 50}, 50),
        ({"max_tokens": 0}, 1),
        ({"max_tokens": 9, "max_completion_tokens": 0}, 1),
        ({"max_tokens": 9, "max_completion_tokens": None}, 9),
    ],
)
def test_the_newer_cap_wins_and_zero_counts_as_one(members: dict[str, Any], expected: int | None) -> None:
    parsed = parse_chat(chat(**members))
    assert parsed.max_tokens == expected
    assert parsed.body.get("max_tokens") == expected
    assert "max_completion_tokens" not in parsed.body


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, None),
        ({"service_tier": "priority"}, 2),
        ({"service_tier": "fast"}, 2),
        ({"service_tier": "auto"}, 5),
        ({"service_tier": "default"}, 5),
        ({"service_tier": "scale"}, 5),
        ({"service_tier": "flex"}, 8),
        ({"service_tier": "flex", "priority": 1}, 1),
        ({"priority": 0}, 0),
    ],
)
def test_priority(members: dict[str, Any], expected: int | None) -> None:
    parsed = parse_chat(chat(**members))
    assert parsed.priority == expected
    assert not {"priority", "service_tier"} & parsed.body.keys()


def test_unknown_fields_are_reported_and_kept() -> None:
    parsed = parse_chat(chat(id_slot=3, n_probs=5))
    assert parsed.extras == {"id_slot": 3, "n_probs": 5}
    assert parsed.body["id_slot"] == 3


def test_prompt_bytes_are_utf8_and_count_calls_and_tools() -> None:
    assert parse_chat(chat(messages=[{"role": "user", "content": "é你"}])).prompt_bytes == 5
    call = {"function": {"name": "ff", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert parse_chat(chat(messages=[message])).prompt_bytes == 4
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert parse_chat(chat(tools=tools)).prompt_bytes == 2 + len(orjson.dumps(tools))


def test_errors_never_echo_the_input() -> None:
    marker = "PROMPT-MARKER" * 500
    for body in (
        chat(temperature=marker),
        chat(user=[marker]),
        chat(messages=[{"role": marker, "content": "x"}]),
        chat(messages=[{"role": "user", "content": [{"type": marker}]}]),
        chat(metadata={"k": marker}),
        chat(tool_choice=marker),
    ):
        assert "PROMPT-MARKER" not in refusal(body).message
    assert len(refusal(chat(metadata={marker: "x"})).param or "") <= 128


def test_a_small_body_is_cheap() -> None:
    raw = orjson.dumps(chat(temperature=0.5, stream=True, max_tokens=5))
    best = min(timeit.repeat(lambda: parse_chat(parse_body(raw)), number=500, repeat=7)) / 500
    assert best < 60e-6
