"""What passes to vLLM, what is refused, and what a request becomes on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.vllm.calls import engine_call, engine_ids, vllm_body
from llm_runtime.engines.vllm.fields import check
from tests.engines.driving import make_request

COMPLETIONS = EndpointKind.COMPLETIONS


def chat(**body: Any) -> RuntimeRequest:
    return make_request("m", **body)


def completion(**body: Any) -> RuntimeRequest:
    return make_request("m", kind=COMPLETIONS, **body)


def sent(request: RuntimeRequest, *, with_priority: bool = False) -> dict[str, Any]:
    check(request)
    return vllm_body(request, with_priority=with_priority)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "json_object"}),
        ("structured_outputs", {"choice": ["a", "b"]}),
        ("logprobs", True),
        ("top_k", 5),
        ("min_p", 0.1),
        ("min_tokens", 3),
        ("stop_token_ids", [1, 2]),
        ("ignore_eos", True),
        ("n", 2),
        ("seed", 7),
        ("repetition_penalty", 1.1),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("cache_salt", "tenant"),
    ],
)
def test_what_vllm_honours_passes_unchanged(name: str, value: Any) -> None:
    assert sent(chat(**{name: value}))[name] == value


@pytest.mark.parametrize(
    "name",
    [
        "audio", "verbosity", "web_search_options", "moderation", "nonsense", "functions", "function_call",
        "request_id", "kv_transfer_params", "vllm_xargs", "prompt_embeds", "stream_options",
        "continuous_usage_stats", "mm_payload",
    ],
)  # fmt: skip
def test_what_vllm_would_drop_or_what_is_no_clients_business_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}'") as caught:
        check(chat(**{name: {"x": 1}}))
    assert caught.value.param == name
    assert caught.value.reason == "unsupported_parameter"


@pytest.mark.parametrize("name", ["user", "metadata", "store", "safety_identifier", "prompt_cache_key"])
def test_labels_are_accepted_and_kept_here(name: str) -> None:
    assert name not in sent(chat(**{name: "x"}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("modalities", ["text"]),
        ("functions", []),
        ("tools", []),
        ("use_beam_search", False),
        ("prompt_logprobs", 0),
        ("return_token_ids", False),
        ("length_penalty", 1.0),
        ("best_of", 1),
    ],
)
def test_values_that_ask_for_nothing_are_obeyed_by_not_being_sent(name: str, value: Any) -> None:
    assert name not in sent(chat(**{name: value}, stream=True))


def test_a_tool_choice_without_tools_is_not_sent() -> None:
    body = sent(chat(tools=[], tool_choice="none", parallel_tool_calls=True))
    assert "tool_choice" not in body
    assert "parallel_tool_calls" not in body


def test_ranking_is_refused_and_as_many_candidates_as_answers_are_no_ranking() -> None:
    with pytest.raises(InvalidRequest, match="best_of"):
        check(completion(best_of=3, n=2))
    check(completion(best_of=2, n=2))


@pytest.mark.parametrize(
    ("name", "value"), [("prompt_logprobs", 1), ("use_beam_search", True), ("return_token_ids", True)]
)
def test_what_only_whole_answers_have_is_asked_for_whole(name: str, value: Any) -> None:
    body = sent(chat(**{name: value}))
    assert body[name] == value
    assert "stream" not in body
    assert "stream_options" not in body
    with pytest.raises(InvalidRequest, match="'stream'"):
        check(chat(**{name: value}, stream=True))


def test_streams_ask_for_usage_once_and_for_every_token_at_once() -> None:
    body = sent(chat(stream=True))
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert "stream_interval" not in body


def test_plain_replies_are_streamed_in_coarse_steps_with_counts() -> None:
    body = sent(chat())
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body["stream_interval"] == 8
    assert sent(chat(stream_interval=2))["stream_interval"] == 2


def test_the_cap_is_the_requests_and_our_name_for_it_is_the_engines() -> None:
    request = replace(chat(max_tokens=9), max_tokens=5)
    body = sent(request)
    assert body["max_tokens"] == 5
    assert body["request_id"] == request.id


@pytest.mark.parametrize("with_priority", [False, True])
def test_priority_goes_down_only_where_vllm_orders_by_it(with_priority: bool) -> None:
    body = sent(replace(chat(), priority=2), with_priority=with_priority)
    assert body.get("priority") == (2 if with_priority else None)


def test_a_chat_is_one_request_to_the_engine_and_each_prompt_of_a_completion_is() -> None:
    assert engine_ids(replace(chat(n=2), id="x")) == ("chatcmpl-x",)
    assert engine_ids(replace(completion(prompt="a"), id="x")) == ("cmpl-x-0",)
    assert engine_ids(replace(completion(prompt=["a", "b"]), id="x")) == ("cmpl-x-0", "cmpl-x-1")
    assert engine_ids(replace(completion(prompt=[1, 2, 3]), id="x")) == ("cmpl-x-0",)
    assert engine_ids(replace(completion(prompt=[[1], [2]]), id="x")) == ("cmpl-x-0", "cmpl-x-1")


def test_the_call_goes_to_the_endpoint_of_its_kind() -> None:
    call = engine_call(completion(prompt=["a", "b"], n=2), with_priority=False)
    assert call.path == "/v1/completions"
    assert orjson.loads(call.body)["prompt"] == ["a", "b"]
    assert call.options.num_choices == 4
    assert call.options.num_prompts == 2
    assert engine_call(chat(), with_priority=False).path == "/v1/chat/completions"


# The families beside chat and completions


def passed(kind: EndpointKind, **body: Any) -> RuntimeRequest:
    return replace(chat(), kind=kind, body={"model": "m", **body})


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (EndpointKind.RESPONSES, "/v1/responses"),
        (EndpointKind.MESSAGES, "/v1/messages"),
        (EndpointKind.EMBEDDINGS, "/v1/embeddings"),
        (EndpointKind.RERANK, "/v1/rerank"),
        (EndpointKind.TOKENIZE, "/tokenize"),
    ],
)
def test_the_other_families_pass_as_they_came(kind: EndpointKind, path: str) -> None:
    request = replace(passed(kind, input="x", anything={"deep": 1}), stream=True, priority=2)
    check(request)
    call = engine_call(request, with_priority=True)
    assert call.path == path
    assert orjson.loads(call.body) == {"model": "m", "input": "x", "anything": {"deep": 1}, "stream": True}
    assert call.headers == {"x-vllm-priority": "2"}
    assert engine_call(request, with_priority=False).headers is None
    assert engine_ids(request) == ()


@pytest.mark.parametrize(
    ("name", "value"), [("request_id", "x"), ("kv_transfer_params", {}), ("background", True)]
)
def test_what_would_escape_our_limits_is_refused_there_too(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}'"):
        check(passed(EndpointKind.RESPONSES, input="x", **{name: value}))
    check(passed(EndpointKind.RESPONSES, input="x", background=False))
