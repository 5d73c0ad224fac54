from __future__ import annotations

from typing import Any

import pytest

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.dialects import dialect_for, typed_dialect_for
from llm_runtime.wire.usage import read_usage

CHAT = dialect_for(EndpointKind.CHAT)
TEXT = dialect_for(EndpointKind.COMPLETIONS)


def test_one_shared_dialect_for_each_family() -> None:
    for kind in EndpointKind:
        dialect = dialect_for(kind)
        assert dialect.kind is kind
        assert dialect_for(kind) is dialect
        assert dialect.keep_alive.startswith(b":")
        assert dialect.keep_alive.endswith(b"\n\n")
    for kind in (EndpointKind.RESPONSES, EndpointKind.MESSAGES):
        assert typed_dialect_for(kind) is dialect_for(kind)
    with pytest.raises(KeyError):
        typed_dialect_for(EndpointKind.CHAT)


@pytest.mark.parametrize(
    ("delta", "is_token"),
    [
        ({}, False),
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({"content": None}, False),
        ({"content": "x"}, True),
        ({"role": "assistant", "content": "x"}, True),
        ({"reasoning_content": "x"}, True),
        ({"reasoning": "x"}, True),
        ({"refusal": "x"}, True),
        ({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}, False),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, True),
        ({"tool_calls": [{"index": 0, "custom": {"input": "x"}}]}, True),
        ({"tool_calls": []}, False),
        ({"tool_calls": ["x"]}, False),
        ({"function_call": {"name": "f"}}, False),
        ({"function_call": {"arguments": "{"}}, True),
        ({"audio": {"data": "AAAA"}}, True),
        ({"x_unknown": "x"}, False),
    ],
)
def test_what_counts_as_a_token(delta: dict[str, Any], is_token: bool) -> None:
    assert CHAT.has_token({"choices": [{"index": 0, "delta": delta}]}) is is_token
    assert CHAT.has_token({"choices": [{"index": 0, "message": delta}]}) is is_token


def test_tokens_of_completions() -> None:
    assert TEXT.has_token({"choices": [{"text": ""}, {"text": "x"}]})
    assert not TEXT.has_token({"choices": [{"text": ""}]})
    assert not TEXT.has_token({"choices": []})
    assert not CHAT.has_token({"usage": {}})


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ([], None),
        ({}, None),
        ({"prompt_tokens": 3}, Usage(3, 0, 0)),
        ({"prompt_tokens": 3, "completion_tokens": None}, Usage(3, 0, 0)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 99}, Usage(3, 2, 0)),
        (
            {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
            Usage(3, 2, 1),
        ),
        ({"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(3, 2, 0)),
        ({"prompt_tokens": True, "completion_tokens": 2}, None),
        ({"prompt_tokens": -1, "completion_tokens": 2}, None),
        ({"prompt_tokens": 3, "completion_tokens": "2"}, None),
    ],
)
def test_usage(usage: Any, expected: Usage | None) -> None:
    assert read_usage(usage) == CHAT.usage({"usage": usage}) == TEXT.usage({"usage": usage}) == expected
