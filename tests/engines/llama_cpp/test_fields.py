"""Which fields reach llama.cpp, which are refused by name, and in what words it is asked."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.llama_cpp.calls import engine_call
from llm_runtime.engines.llama_cpp.fields import TemplateAbilities, check
from tests.engines.driving import make_request

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def sent(kind: EndpointKind = EndpointKind.CHAT, **body: Any) -> dict[str, Any]:
    request = make_request("m", kind=kind, **body)
    check(request, TemplateAbilities())
    parsed: dict[str, Any] = orjson.loads(engine_call(request, 7).body)
    return parsed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", TOOLS),
        ("tool_choice", "required"),
        ("parallel_tool_calls", True),
        ("functions", [{"name": "f"}]),
        ("audio", {"voice": "x", "format": "wav"}),
        ("modalities", ["text", "audio"]),
        ("web_search_options", {}),
        ("reasoning_effort", "high"),
        ("min_tokens", 3),
        ("stop_token_ids", [3]),
        ("id_slot", 2),
        ("n_probs", 100000),
        ("cache_prompt", False),
        ("n_discard", 5),
        ("grammar", "root ::= x"),
    ],
)
def test_what_the_engine_would_ignore_or_abuse_is_refused_by_name(field: str, value: Any) -> None:
    request = make_request("m", **{field: value})
    with pytest.raises(InvalidRequest) as caught:
        check(request, TemplateAbilities())
    assert caught.value.param == field
    assert field in caught.value.message
    assert caught.value.reason == "unsupported_parameter"


@pytest.mark.parametrize(
    ("field", "value"), [("echo", True), ("suffix", "x"), ("best_of", 3), ("messages", []), ("tools", TOOLS)]
)
def test_completions_refuses_what_it_cannot_do(field: str, value: Any) -> None:
    request = make_request("m", kind=EndpointKind.COMPLETIONS, **{field: value})
    with pytest.raises(InvalidRequest) as caught:
        check(request, TemplateAbilities())
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", False),
        ("suffix", ""),
        ("best_of", 1),
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("store", True),
    ],
)
def test_what_asks_for_nothing_passes_but_is_not_sent(field: str, value: Any) -> None:
    assert field not in sent(EndpointKind.COMPLETIONS, **{field: value})


def test_tools_pass_where_the_template_has_them() -> None:
    check(make_request("m", tools=TOOLS, tool_choice="auto"), TemplateAbilities(tools=True))


def test_a_call_that_is_forbidden_is_forbidden_to_the_engine_too() -> None:
    request = make_request("m", tools=TOOLS, tool_choice="none")
    check(request, TemplateAbilities(tools=True))
    body = orjson.loads(engine_call(request, 7).body)
    assert (body["tools"], body["tool_choice"]) == (TOOLS, "none")
    assert "tool_choice" not in sent(tool_choice="none", tools=[])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_call_cannot_be_forced(choice: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(make_request("m", tools=TOOLS, tool_choice=choice), TemplateAbilities(tools=True))
    assert caught.value.param == "tool_choice"


def test_tools_with_log_probabilities_go_unstreamed() -> None:
    request = make_request("m", tools=TOOLS, logprobs=True)
    check(request, TemplateAbilities(tools=True))
    call = engine_call(request, 7)
    assert "stream" not in orjson.loads(call.body)
    assert call.reader is not None
    streamed = make_request("m", tools=TOOLS, logprobs=True, stream=True)
    with pytest.raises(InvalidRequest) as caught:
        check(streamed, TemplateAbilities(tools=True))
    assert caught.value.param == "logprobs"


def test_the_engine_always_streams_with_progress_usage_and_a_tag() -> None:
    body = sent()
    assert body["stream"] is True
    assert body["return_progress"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["n_discard"] == 7
    assert "model" not in body


def test_repetition_penalty_has_another_name_there() -> None:
    body = sent(repetition_penalty=1.2)
    assert body["repeat_penalty"] == 1.2
    assert "repetition_penalty" not in body


def test_the_cap_is_always_said() -> None:
    assert sent(max_tokens=9)["max_tokens"] == 9


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (EndpointKind.CHAT, {"logprobs": True}, "top_logprobs"),
        (EndpointKind.CHAT, {"logprobs": True, "top_logprobs": 0}, "top_logprobs"),
        (EndpointKind.COMPLETIONS, {"logprobs": 0}, "logprobs"),
    ],
)
def test_chosen_tokens_alone_are_asked_as_one_alternative_and_dropped(
    kind: EndpointKind, body: dict[str, Any], field: str
) -> None:
    assert sent(kind, **body)[field] == 1
    assert engine_call(make_request("m", kind=kind, **body), 7).options.drop_alternatives


def test_alternatives_that_were_asked_for_stay() -> None:
    assert sent(logprobs=True, top_logprobs=3)["top_logprobs"] == 3
    assert not engine_call(make_request("m", logprobs=True, top_logprobs=3), 7).options.drop_alternatives
    assert not engine_call(make_request("m"), 7).options.drop_alternatives


def test_props_tell_whether_the_template_has_tools() -> None:
    assert TemplateAbilities.of_props({"chat_template_caps": {"supports_tools": True}}).tools
    assert not TemplateAbilities.of_props({"chat_template_caps": {"supports_tools": False}}).tools
    assert not TemplateAbilities.of_props({}).tools
