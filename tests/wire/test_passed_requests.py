"""Requests beside chat and completions: what is read of them, what goes on, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.wire.parsed_request import ParsedRequest
from llm_runtime.wire.passed_requests import (
    parse_embeddings,
    parse_messages,
    parse_rerank,
    parse_responses,
    parse_tokenize,
    text_bytes,
)

Parse = Callable[[dict[str, Any]], ParsedRequest]
HELLO = [{"role": "user", "content": "Hello"}]

LEAST: list[tuple[Parse, dict[str, Any]]] = [
    (parse_embeddings, {"model": "m", "input": "Hello"}),
    (parse_responses, {"model": "m", "input": "Hello"}),
    (parse_messages, {"model": "m", "messages": HELLO, "max_tokens": 5}),
    (parse_rerank, {"model": "m", "query": "q", "documents": ["a"]}),
    (parse_tokenize, {"model": "m", "prompt": "Hello"}),
]
ALL = pytest.mark.parametrize(("parse", "body"), LEAST)


@ALL
def test_the_least(parse: Parse, body: dict[str, Any]) -> None:
    before = dict(body)
    parsed = parse(body)
    assert body == before
    assert parsed.body == body
    assert (parsed.model, parsed.stream, parsed.num_slots, parsed.priority) == ("m", False, 1, None)
    assert parsed.prompt_tokens_exact is None
    assert parsed.prompt_bytes >= 2


@ALL
def test_what_nobody_knows_goes_on_and_ours_stays(parse: Parse, body: dict[str, Any]) -> None:
    parsed = parse({**body, "priority": 3, "x": {"a": [1]}, "y": None, "user": None})
    assert parsed.body == {**body, "x": {"a": [1]}}
    assert parsed.priority == 3


@ALL
@pytest.mark.parametrize("priority", [-1, 10, True, "3", 1.5])
def test_priority_is_checked(parse: Parse, body: dict[str, Any], priority: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse({**body, "priority": priority})
    assert caught.value.param == "priority"


@ALL
def test_the_required_members(parse: Parse, body: dict[str, Any]) -> None:
    for name in body:
        for absent in ({k: v for k, v in body.items() if k != name}, {**body, name: None}):
            with pytest.raises(InvalidRequest) as caught:
                parse(absent)
            assert caught.value.param == name
            assert caught.value.reason == "missing_required_parameter"


WRONG: list[tuple[Parse, dict[str, Any], str]] = [
    (parse_embeddings, {"input": ""}, "input"),
    (parse_embeddings, {"input": []}, "input"),
    (parse_embeddings, {"input": ["a", ""]}, "input[1]"),
    (parse_embeddings, {"input": ["a", 1]}, "input[1]"),
    (parse_embeddings, {"input": [[]]}, "input[0]"),
    (parse_embeddings, {"input": [-1]}, "input[0]"),
    (parse_embeddings, {"input": {"text": "a"}}, "input"),
    (parse_embeddings, {"input": ["a"] * 2049}, "input"),
    (parse_embeddings, {"dimensions": 0}, "dimensions"),
    (parse_embeddings, {"encoding_format": "int8"}, "encoding_format"),
    (parse_responses, {"input": 7}, "input"),
    (parse_responses, {"input": []}, "input"),
    (parse_responses, {"input": ["a"]}, "input"),
    (parse_responses, {"stream": "yes"}, "stream"),
    (parse_responses, {"max_output_tokens": 0}, "max_output_tokens"),
    (parse_responses, {"service_tier": "gold"}, "service_tier"),
    (parse_responses, {"temperature": 3}, "temperature"),
    (parse_messages, {"messages": []}, "messages"),
    (parse_messages, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    (parse_messages, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (parse_messages, {"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    (parse_messages, {"max_tokens": 0}, "max_tokens"),
    (parse_messages, {"max_tokens": "5"}, "max_tokens"),
    (parse_messages, {"system": 7}, "system"),
    (parse_rerank, {"documents": []}, "documents"),
    (parse_rerank, {"query": ""}, "query"),
    (parse_rerank, {"top_n": 0}, "top_n"),
    (parse_tokenize, {"messages": HELLO}, "messages"),
    (parse_tokenize, {"prompt": None, "messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
    (
        parse_tokenize,
        {"prompt": None, "messages": [{"role": "user", "content": [7]}]},
        "messages[0].content[0]",
    ),
]


@pytest.mark.parametrize(("parse", "change", "param"), WRONG)
def test_refused_by_name(parse: Parse, change: dict[str, Any], param: str) -> None:
    least = next(body for known, body in LEAST if known is parse)
    with pytest.raises(InvalidRequest) as caught:
        parse({**least, **change})
    assert caught.value.param == param
    assert repr(next(iter(change.values()))) not in caught.value.message


@pytest.mark.parametrize(
    ("inputs", "num_tokens", "num_bytes"),
    [
        ("né", None, 3),
        (["a", "bc"], None, 3),
        ([1, 2, 3], 3, 0),
        ([[1, 2], [3]], 3, 0),
    ],
)
def test_embedding_inputs(inputs: Any, num_tokens: int | None, num_bytes: int) -> None:
    parsed = parse_embeddings({"model": "m", "input": inputs})
    assert (parsed.prompt_tokens_exact, parsed.prompt_bytes) == (num_tokens, num_bytes)
    assert parsed.num_slots == 1, "a batch is one piece of work"
    assert parsed.max_tokens == 1


def test_responses() -> None:
    parsed = parse_responses(
        {
            "model": "m",
            "stream": True,
            "max_output_tokens": 9,
            "service_tier": "flex",
            "instructions": "abc",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
                {"type": "function_call_output", "output": "xy"},
            ],
            "stream_options": {"include_obfuscation": False},
        }
    )
    assert (parsed.stream, parsed.max_tokens, parsed.priority) == (True, 9, 8)
    assert "stream" not in parsed.body
    assert "service_tier" not in parsed.body
    assert parsed.body["stream_options"] == {"include_obfuscation": False}
    assert parsed.prompt_bytes >= len("abc" + "hello" + "xy")
    assert parse_responses({"model": "m", "prompt": {"id": "p"}}).max_tokens is None


def test_messages() -> None:
    body = {
        "model": "m", "max_tokens": 7, "stream": True, "service_tier": "standard_only", "system": "abc",
        "messages": [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}],
    }  # fmt: skip
    parsed = parse_messages(body)
    assert (parsed.stream, parsed.max_tokens, parsed.priority) == (True, 7, None)
    assert parsed.body.keys() == {"model", "max_tokens", "system", "messages"}
    assert parsed.prompt_bytes >= len("abc" + "Hello" + "hi")


def test_rerank_counts_the_query_with_each_document() -> None:
    parsed = parse_rerank({"model": "m", "query": "1234", "documents": ["a", {"text": "bc"}, "d"]})
    assert parsed.prompt_bytes == 3 * 4 + 4


def test_tokenize_takes_a_conversation() -> None:
    parsed = parse_tokenize({"model": "m", "messages": HELLO, "add_generation_prompt": True})
    assert parsed.body["messages"] == HELLO


def test_text_of_a_request() -> None:
    assert text_bytes({"image_url": {"url": "x" * 100}, "source": {"data": "y" * 100}, "text": "né"}) == 3
    assert text_bytes([1, None, True, 2.5, "ab", ["c"]]) == 3
