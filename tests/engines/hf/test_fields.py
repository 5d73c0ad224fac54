"""Which request fields pass, which are refused, and how they are read."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.hf.calls import engine_call
from llm_runtime.engines.hf.fields import Sampling, check, passed_body
from tests.engines.driving import make_request

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


@pytest.mark.parametrize(
    "extra",
    [
        {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "repetition_penalty": 1.1},
        {"max_tokens": 3, "min_tokens": 1, "stop": "x", "stop_token_ids": [1], "ignore_eos": True},
        {"n": 2, "logit_bias": {"5": -100}, "user": "somebody", "metadata": {"a": "b"}},
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"best_of": 1},
        {"best_of": 2, "n": 2},
    ],
)
def test_what_passes(extra: dict[str, Any]) -> None:
    check(EndpointKind.CHAT, {**CHAT, **extra})
    check(EndpointKind.COMPLETIONS, {**TEXT, **extra})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (EndpointKind.CHAT, "logprobs", True),
        (EndpointKind.CHAT, "top_logprobs", 2),
        (EndpointKind.CHAT, "tools", [{"type": "function", "function": {"name": "f"}}]),
        (EndpointKind.CHAT, "tool_choice", "required"),
        (EndpointKind.CHAT, "response_format", {"type": "json_object"}),
        (EndpointKind.CHAT, "presence_penalty", 0.5),
        (EndpointKind.CHAT, "frequency_penalty", -1),
        (EndpointKind.CHAT, "prompt", "x"),
        (EndpointKind.CHAT, "guided_json", {}),
        (EndpointKind.COMPLETIONS, "logprobs", 0),
        (EndpointKind.COMPLETIONS, "logprobs", 3),
        (EndpointKind.COMPLETIONS, "echo", True),
        (EndpointKind.COMPLETIONS, "suffix", "end"),
        (EndpointKind.COMPLETIONS, "best_of", 3),
        (EndpointKind.COMPLETIONS, "chat_template_kwargs", {}),
    ],
)
def test_what_would_be_ignored_is_refused_by_name(kind: EndpointKind, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(kind, {**(CHAT if kind is EndpointKind.CHAT else TEXT), name: value})
    assert caught.value.param == name
    assert caught.value.reason == "unsupported_parameter"


@pytest.mark.parametrize(
    "extra",
    [
        {"logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "none"},
        {"tool_choice": "auto", "parallel_tool_calls": True, "functions": []},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
    ],
)
def test_what_asks_for_nothing_passes_and_goes_no_further(extra: dict[str, Any]) -> None:
    check(EndpointKind.CHAT, {**CHAT, **extra})
    assert passed_body(EndpointKind.CHAT, {**CHAT, **extra}) == {"messages": CHAT["messages"]}


def test_sampling_is_read() -> None:
    body = {**CHAT, "stop": "x", "logit_bias": {"7": 1}, "min_tokens": 2, "temperature": 0, "seed": -1}
    assert Sampling.of(body) == Sampling(
        min_tokens=2, temperature=0, seed=-1, logit_bias={7: 1.0}, stop=("x",), stop_token_ids=()
    )
    assert Sampling.of({**CHAT, "stop": ["a", "b"], "stop_token_ids": [3]}).stop == ("a", "b")
    assert Sampling.of(CHAT) == Sampling()


def test_a_call_streams_and_names_its_run() -> None:
    request = make_request("m", stream=False, max_tokens=5, user="somebody", tools=[])
    call = engine_call(request, 12)
    body = orjson.loads(call.body)
    assert call.path == "/v1/chat/completions?run=12"
    assert call.assemble
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_tokens"] == 5
    assert "user" not in body
    assert "tools" not in body
