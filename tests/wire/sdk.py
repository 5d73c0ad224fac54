"""Strict reading of what we write, with the models of OpenAI's own SDK."""

from __future__ import annotations

from typing import Any

import orjson
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from llm_runtime.core.request import EndpointKind

BODY_KEYS = {"id", "object", "created", "model", "choices"}


def read_stream(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream that must end with `[DONE]`."""
    assert stream.endswith(b"\n\n")
    blocks = stream[:-2].split(b"\n\n")
    assert all(block.startswith(b"data: ") or block.startswith(b"data:") for block in blocks)
    assert all(b"\n" not in block for block in blocks)
    payloads = [block[5:].strip() for block in blocks]
    assert payloads.pop() == b"[DONE]"
    return [orjson.loads(payload) for payload in payloads]


def validate_chunk(kind: EndpointKind, event: dict[str, Any]) -> None:
    assert event.keys() >= BODY_KEYS
    if kind is EndpointKind.CHAT:
        ChatCompletionChunk.model_validate(event, strict=True)
        assert all(choice.keys() >= {"index", "delta", "finish_reason"} for choice in event["choices"])
        return
    for choice in event["choices"]:
        assert choice.keys() >= {"index", "text", "logprobs", "finish_reason"}
    # The SDK reads chunks of this endpoint as whole completions, whose finish reason is never null.
    finished = [{**c, "finish_reason": c["finish_reason"] or "stop"} for c in event["choices"]]
    Completion.model_validate({**event, "choices": finished}, strict=True)


def validate_body(kind: EndpointKind, raw: bytes) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(raw)
    assert body.keys() >= BODY_KEYS
    for choice in body["choices"]:
        assert "logprobs" in choice
    if kind is EndpointKind.CHAT:
        ChatCompletion.model_validate(body, strict=True)
        for choice in body["choices"]:
            assert choice["message"].keys() >= {"role", "content", "refusal"}
    else:
        Completion.model_validate(body, strict=True)
    return body


def texts(events: list[dict[str, Any]]) -> dict[int, dict[str, str]]:
    """What a client that concatenates deltas ends up with: text by choice and member."""
    read: dict[int, dict[str, str]] = {}
    for event in events:
        for choice in event["choices"]:
            members = read.setdefault(choice["index"], {})
            delta = choice["delta"] if "delta" in choice else {"text": choice["text"]}
            for name, value in delta.items():
                if isinstance(value, str):
                    members[name] = members.get(name, "") + value
    return read
