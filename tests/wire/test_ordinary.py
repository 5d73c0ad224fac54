"""The short way for ordinary requests: what it takes, the schema takes too, and reads the same out of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.wire.ordinary import ordinary_request
from llm_runtime.wire.parsed_request import ParsedRequest
from llm_runtime.wire.requests import parse_any_chat, parse_completions, validated_chat, validated_completions
from llm_runtime.wire.schemas.chat import ChatRequest
from llm_runtime.wire.schemas.completions import CompletionsRequest

SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([-(2**31), -101, -2, -1, 0, 1, 2, 9, 10, 128, 129, 2**31, 2**63, 2**64 - 1])
    | st.sampled_from([-2.5, -2.0, -0.5, 0.0, 0.7, 1.0, 1.5, 2.0, 2.1, 1e300])
    | st.sampled_from(["", "flex", "fast", "auto", "none", "low", "user", "text", "hé", "m" * 512, "m" * 513])
)
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=5)
    | st.dictionaries(
        st.sampled_from(["include_usage", "include_obfuscation", "type", "x"]), SCALARS, max_size=2
    )
)
FIELDS = sorted({*ChatRequest.model_fields, *CompletionsRequest.model_fields, "id_slot", "guided_json"})
COMMON = {
    "max_tokens": st.integers(0, 99),
    "max_completion_tokens": st.integers(0, 99),
    "temperature": st.floats(0, 2) | st.integers(0, 2),
    "top_p": st.floats(0, 1),
    "n": st.integers(1, 4),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "stop": st.text(max_size=3) | st.lists(st.text(min_size=1, max_size=3), max_size=5),
    "seed": st.integers(-(2**40), 2**40),
    "user": st.text(max_size=4),
    "priority": st.integers(0, 9),
    "service_tier": st.sampled_from(["priority", "fast", "auto", "default", "scale", "flex", "gold"]),
    "logprobs": st.booleans() | st.integers(0, 5),
}
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "root", None])
CONTENTS = st.text(max_size=8) | st.sampled_from([None, 7, [], [{"type": "text", "text": "hi"}]])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES, "content": CONTENTS},
        optional=dict.fromkeys(("name", "tool_call_id", "tool_calls", "refusal", "audio"), SCALARS),
    )
    | st.fixed_dictionaries({"role": st.just("user"), "content": st.text(max_size=8)}),
    max_size=4,
)
PROMPTS = st.text(max_size=8) | st.lists(st.text(max_size=3) | st.integers(0, 9), max_size=3)


@st.composite
def bodies(draw: st.DrawFn, endpoint: dict[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    """Mostly of common members with usual values, so that the short way takes a good part of them."""
    common = draw(st.fixed_dictionaries({}, optional=COMMON))
    strange = draw(st.just({}) | st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=2))
    members = {"model": "m", **{name: draw(values) for name, values in endpoint.items()}, **common, **strange}
    order = draw(st.permutations(list(members)))
    return {name: members[name] for name in order}


CHATS = bodies({"messages": MESSAGES})
COMPLETIONS = bodies({"prompt": PROMPTS})


def check(body: dict[str, Any], taken: ParsedRequest | None, truth: Callable[[], ParsedRequest]) -> None:
    if taken is None:
        return
    expected = truth()  # which raises where the schema refuses
    assert taken == expected
    assert repr(taken) == repr(expected)  # types and the order of members too
    assert taken.body is not body


@given(CHATS)
@settings(max_examples=400, deadline=None)
def test_an_ordinary_chat_is_what_the_schema_makes_of_it(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    check(body, ordinary_request(body, chat=True), lambda: validated_chat(body, None))
    assert body == before


@given(COMPLETIONS)
@settings(max_examples=300, deadline=None)
def test_an_ordinary_completion_is_what_the_schema_makes_of_it(body: dict[str, Any]) -> None:
    check(body, ordinary_request(body, chat=False), lambda: validated_completions(body))


@pytest.mark.parametrize("name", FIELDS)
@given(value=VALUES)
@settings(max_examples=60, deadline=None)
def test_every_single_member_is_judged_alike(name: str, value: Any) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], name: value}
    check(chat, ordinary_request(chat, chat=True), lambda: validated_chat(chat, None))
    completion = {"model": "m", "prompt": "hi", name: value}
    check(completion, ordinary_request(completion, chat=False), lambda: validated_completions(completion))


@given(CHATS | COMPLETIONS)
@settings(max_examples=200, deadline=None)
def test_the_entrances_give_what_the_schema_gives_or_refuse_as_it_does(body: dict[str, Any]) -> None:
    assert told(parse_any_chat, body) == told(lambda body: validated_chat(body, None), body)
    assert told(parse_completions, body) == told(validated_completions, body)


def told(parse: Callable[[dict[str, Any]], ParsedRequest], body: dict[str, Any]) -> Any:
    try:
        return repr(parse(body))
    except InvalidRequest as error:
        return error.message, error.param, error.reason


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"max_tokens": 64, "stream": False},
        {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "top_p": 1.0},
        {"max_completion_tokens": 9, "n": 2, "stop": ["a", "b"], "seed": 7, "user": "u"},
        {"service_tier": "flex", "presence_penalty": -2, "top_k": -1, "ignore_eos": True, "tools": None},
    ],
)
def test_the_usual_requests_go_the_short_way(members: dict[str, Any]) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hé", "name": "n"}]
    chat = {"model": "m", "messages": messages, **members}
    assert ordinary_request(chat, chat=True) is not None
    if "max_completion_tokens" not in members:
        assert ordinary_request({"model": "m", "prompt": "p", **members}, chat=False) is not None
