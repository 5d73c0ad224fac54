from __future__ import annotations

from typing import Any

import pytest

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.wire.requests import parse_completions
from llm_runtime.wire.schemas.completions import CompletionsRequest

SPEC_FIELDS = [
    "model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs",
    "max_tokens", "n", "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix",
    "temperature", "top_p", "user",
]  # fmt: skip


def completion(**members: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hi", **members}


def refusal(body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_completions(body)
    return caught.value


def test_every_field_of_the_description_is_known() -> None:
    assert set(SPEC_FIELDS) <= set(CompletionsRequest.model_fields)


@pytest.mark.parametrize(
    ("prompt", "num_prompts", "num_bytes", "num_tokens"),
    [
        ("héllo", 1, 6, None),
        ("", 1, 0, None),
        (["ab", "c"], 2, 3, None),
        ([1, 2, 3], 1, 0, 3),
        ([[1, 2], [3]], 2, 0, 3),
    ],
)
def test_prompt_forms(prompt: Any, num_prompts: int, num_bytes: int, num_tokens: int | None) -> None:
    parsed = parse_completions(completion(prompt=prompt))
    assert parsed.num_prompts == parsed.num_slots == num_prompts
    assert (parsed.prompt_bytes, parsed.prompt_tokens_exact) == (num_bytes, num_tokens)
    assert parsed.body["prompt"] == prompt


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (7, "prompt"),
        ({}, "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([[1], [True]], "prompt[1][0]"),
        ([1.5], "prompt[0]"),
        ([-1], "prompt[0]"),
        ([True], "prompt[0]"),
    ],
)
def test_bad_prompts(prompt: Any, param: str) -> None:
    assert refusal(completion(prompt=prompt)).param == param


def test_prompt_missing() -> None:
    error = refusal({"model": "m"})
    assert (error.param, error.reason) == ("prompt", "missing_required_parameter")


@pytest.mark.parametrize(
    ("members", "num_slots"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"best_of": 4}, 4),
        ({"n": 2, "best_of": 4}, 4),
        ({"n": 3, "best_of": 2}, 3),
        ({"best_of": 0}, 1),
        ({"n": 2, "best_of": 3, "prompt": ["a", "b"]}, 6),
        ({"n": 2, "prompt": [[1], [2], [3]]}, 6),
    ],
)
def test_slots(members: dict[str, Any], num_slots: int) -> None:
    assert parse_completions(completion(**members)).num_slots == num_slots


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 21}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"echo": "yes"}, "echo"),
        ({"suffix": 1}, "suffix"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": "0.7"}, "temperature"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"model": None}, "model"),
    ],
)
def test_bad_fields(members: dict[str, Any], param: str) -> None:
    assert refusal(completion(**members)).param == param


def test_what_is_ours_is_taken_out() -> None:
    parsed = parse_completions(
        completion(
            stream=True,
            stream_options={"include_usage": True},
            priority=3,
            service_tier="flex",
            max_tokens=0,
            stop=[],
            echo=False,
            grammar="x",
        )
    )
    assert parsed.body == {"model": "m", "prompt": "hi", "max_tokens": 1, "echo": False, "grammar": "x"}
    assert (parsed.priority, parsed.stream, parsed.include_usage) == (3, True, True)
    assert parsed.extras == {"grammar": "x"}


@pytest.mark.parametrize("name", sorted(set(CompletionsRequest.model_fields) - {"model", "prompt"}))
def test_null_means_absent(name: str) -> None:
    assert parse_completions(completion(**{name: None})) == parse_completions(completion())
