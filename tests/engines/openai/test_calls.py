"""What goes upstream: every field of the client's, and of ours only the name and the stream's usage."""

from __future__ import annotations

from typing import Any

import pytest

from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.openai.calls import upstream_body
from llm_runtime.wire.parsed_request import ParsedRequest
from llm_runtime.wire.requests import parse_chat, parse_completions

MESSAGES = [{"role": "user", "content": "Hi"}]


def request_of(parsed: ParsedRequest, kind: EndpointKind = EndpointKind.CHAT) -> RuntimeRequest:
    return RuntimeRequest(
        id="r",
        model=parsed.model,
        kind=kind,
        body=parsed.body,
        arrived_at=0.0,
        created=1,
        stream=parsed.stream,
        max_tokens=parsed.max_tokens or 512,
        cap_field=parsed.cap_field,
    )


def sent(default_cap: int | None = None, **fields: Any) -> dict[str, Any]:
    body = {"model": "shown", "messages": MESSAGES, **fields}
    return upstream_body(request_of(parse_chat(body, accept_parts=None)), "org/real", default_cap)


def test_plain_requests_go_plain() -> None:
    assert sent(temperature=0.5, unknown={"a": [1]}) == {
        "model": "org/real",
        "messages": MESSAGES,
        "temperature": 0.5,
        "unknown": {"a": [1]},
    }


def test_streams_always_ask_for_usage() -> None:
    for given in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": {"unknown": 1}}):
        body = sent(stream=True, **given)
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}


def test_our_own_fields_stay_here() -> None:
    body = sent(priority=3, service_tier="flex", stream=False)
    assert body.keys() == {"model", "messages"}


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_the_cap_keeps_the_name_it_was_given_under(field: str) -> None:
    body = sent(default_cap=99, **{field: 7})
    assert body[field] == 7
    assert ("max_tokens" in body) == (field == "max_tokens")
    assert ("max_completion_tokens" in body) == (field == "max_completion_tokens")


def test_a_cap_is_added_only_where_the_operator_set_one() -> None:
    assert "max_tokens" not in sent()
    assert sent(default_cap=99)["max_tokens"] == 99


def test_pictures_and_tools_pass() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    body = sent(messages=[{"role": "user", "content": parts}], tools=tools, tool_choice="required")
    assert body["messages"][0]["content"] == parts
    assert (body["tools"], body["tool_choice"]) == (tools, "required")


def test_the_body_of_the_request_is_not_changed() -> None:
    request = request_of(parse_completions({"model": "m", "prompt": "x", "stream": True, "max_tokens": 3}))
    before = dict(request.body)
    upstream_body(request, "other", 5)
    assert request.body == before
