"""How the mock reads requests: counts, determinism, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_runtime.core.errors import ContextLengthExceeded, InvalidRequest
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.mock_request import check_request, make_answers, read_prompts
from tests.engines.driving import make_request

CONTEXT = 1000


def chat(**body: Any) -> RuntimeRequest:
    return make_request("m", **body)


def completion(prompt: Any = "Once", **body: Any) -> RuntimeRequest:
    return make_request("m", kind=EndpointKind.COMPLETIONS, prompt=prompt, **body)


def text(request: RuntimeRequest, index: int = 0) -> str:
    answer = make_answers(request, read_prompts(request), CONTEXT)[index]
    pieces = []
    while answer.finish_reason is None:
        pieces.append(answer.next())
    return "".join(pieces)


@pytest.mark.parametrize(
    ("request_", "counts"),
    [
        (completion("1234"), [1]),
        (completion("12345"), [2]),
        (completion(""), [1]),
        (completion(["1234", "x" * 40]), [1, 10]),
        (completion([7, 8, 9]), [3]),
        (completion([[7, 8, 9], [1]]), [3, 1]),
        (chat(prompt="12345678"), [2]),
        (chat(prompt=[{"type": "text", "text": "1234"}, {"type": "text", "text": "5678"}]), [2]),
    ],
)
def test_prompt_tokens(request_: RuntimeRequest, counts: list[int]) -> None:
    assert [prompt.num_tokens for prompt in read_prompts(request_)] == counts


def test_all_messages_count_and_empty_ones_are_harmless() -> None:
    messages = [
        {"role": "system", "content": "1234"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "5678"},
    ]
    request = replace(chat(), body={"messages": messages})
    assert read_prompts(request)[0].num_tokens == 2


def test_text_depends_on_prompt_seed_and_choice_and_on_nothing_else() -> None:
    base = chat(prompt="hello", n=2)
    assert text(base) == text(chat(prompt="hello", n=2, temperature=1.5, top_p=0.1, user="x"))
    assert text(base) != text(chat(prompt="hello!", n=2))
    assert text(base) != text(chat(prompt="hello", n=2, seed=1))
    assert text(chat(prompt="hello", seed=1)) == text(chat(prompt="hello", seed=1))
    assert text(chat(prompt="hello", seed=0)) != text(chat(prompt="hello"))
    assert text(base, 0) != text(base, 1)


def test_parts_make_the_same_text_as_one_string() -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert text(chat(prompt=parts)) == text(chat(prompt="hello"))


def test_only_the_ends_of_a_huge_prompt_and_its_length_decide() -> None:
    """Hashing megabytes would block the loop. Equal middles are not worth that."""
    huge = "a" * 5_000_000
    changed_end = huge[:-1] + "b"
    assert text(completion(huge)) != text(completion(changed_end))
    assert text(completion(huge)) != text(completion(huge + "a"))


def test_every_prompt_gets_its_choices_in_order() -> None:
    both = completion(["One", "Two"], n=2)
    answers = [text(both, index) for index in range(4)]
    assert answers[:2] == [text(completion("One", n=2), index) for index in range(2)]
    assert answers[2:] == [text(completion("Two", n=2), index) for index in range(2)]


def test_the_context_cuts_an_answer_off() -> None:
    request = completion("x" * 40, max_tokens=500, ignore_eos=True)
    (answer,) = make_answers(request, read_prompts(request), 30)
    while answer.finish_reason is None:
        answer.next()
    assert (answer.num_tokens, answer.finish_reason) == (20, "length")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", True),
        ("top_logprobs", 3),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("functions", [{"name": "f"}]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("function_call", {"name": "f"}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "s"}}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "v", "format": "mp3"}),
        ("web_search_options", {}),
        ("logit_bias", {"5": 1}),
        ("min_tokens", 3),
        ("stop_token_ids", [1]),
        ("grammar", 'root ::= "a"'),
        ("structured_outputs", {"choice": ["a", "b"]}),
        ("guided_json", {"type": "object"}),
        ("stop", "x" * 257),
        ("stop", ["a", "x" * 257]),
    ],
)
def test_chat_fields_it_cannot_honour_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        check_request(chat(**{field: value}), CONTEXT)
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value"), [("logprobs", 0), ("echo", True), ("suffix", "end"), ("best_of", 2)]
)
def test_completion_fields_it_cannot_honour_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        check_request(completion(**{field: value}), CONTEXT)
    assert caught.value.param == field


@pytest.mark.parametrize(
    "body",
    [
        {
            "logprobs": False,
            "top_logprobs": 0,
            "tools": [],
            "tool_choice": "none",
            "response_format": {"type": "text"},
            "modalities": ["text"],
            "logit_bias": {},
            "stop": None,
            "n": None,
            "seed": None,
        },
        {"tool_choice": "auto", "stop": ["x"], "n": 2, "best_of": 2, "presence_penalty": 1.0, "top_k": 5},
        {"echo": False, "suffix": "", "min_tokens": 0, "best_of": 1},
    ],
)
def test_what_asks_for_nothing_special_is_accepted(body: dict[str, Any]) -> None:
    check_request(replace(chat(), body={**chat().body, **body}), CONTEXT)


def test_content_that_is_no_text_is_refused_by_its_place() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(InvalidRequest) as caught:
        check_request(chat(prompt=parts), CONTEXT)
    assert caught.value.param == "messages[0].content[1]"


@pytest.mark.parametrize("make", [chat, completion])
def test_a_prompt_that_fills_the_context_is_refused(make: Any) -> None:
    check_request(make(prompt="x" * (CONTEXT - 1) * 4), CONTEXT)
    with pytest.raises(ContextLengthExceeded) as caught:
        check_request(make(prompt="x" * CONTEXT * 4), CONTEXT)
    assert caught.value.param in ("messages", "prompt")


def test_other_endpoints_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        check_request(replace(chat(), kind=EndpointKind.EMBEDDINGS), CONTEXT)
