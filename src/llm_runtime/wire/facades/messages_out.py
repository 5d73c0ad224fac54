"""A chat's answer as a Messages answer. Prompt tokens are only known at the end, so a stream tells them
in `message_delta`, where that API has its final counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.facades.messages_in import chat_of_messages
from llm_runtime.wire.facades.segments import (
    Change,
    ChatAnswer,
    ChatReader,
    Closed,
    Opened,
    Segment,
    read_reply,
)
from llm_runtime.wire.typed_events import framed

_STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}

_COUNTED_AT_THE_END = frozenset(
    {"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens",
     "output_tokens_details", "server_tool_use"}
)  # fmt: skip


class MessagesFacade:
    kind = EndpointKind.MESSAGES

    def chat_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return chat_of_messages(body)

    def writer(self, body: Mapping[str, Any]) -> MessagesWriter:
        return MessagesWriter()

    def reply(self, raw: bytes, body: Mapping[str, Any]) -> bytes:
        answer = read_reply(raw)
        blocks = [_block(segment, whole=True) for segment in answer.segments]
        message = _message(answer, blocks)
        message.update(_stop(answer))
        return orjson.dumps(message)


class MessagesWriter:
    """`base.EventWriter`."""

    def __init__(self) -> None:
        self._reader = ChatReader()
        self._begun = False

    def feed(self, data: bytes) -> bytes:
        out: list[bytes] = []
        changes = self._reader.feed(data)
        if not self._begun and self._reader.started:
            self._begun = True
            message = {**_message(self._reader.answer, []), "usage": _usage(ChatAnswer())}
            out.append(framed({"type": "message_start", "message": message}))
        out.extend(framed(_event(change)) for change in changes)
        if self._reader.done:
            answer = self._reader.answer
            usage = {name: count for name, count in _usage(answer).items() if name in _COUNTED_AT_THE_END}
            out.append(framed({"type": "message_delta", "delta": _stop(answer), "usage": usage}))
            out.append(framed({"type": "message_stop"}))
        return b"".join(out)


def _message(answer: ChatAnswer, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.stem}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": _usage(answer),
    }


def _stop(answer: ChatAnswer) -> dict[str, Any]:
    """Which of the stop sequences it was, a chat does not tell."""
    reason = _STOPS[answer.finish_reason or "stop"]
    return {"stop_reason": reason, "stop_sequence": None, "stop_details": None, "container": None}


def _usage(answer: ChatAnswer) -> dict[str, Any]:
    cached = answer.count("prompt_tokens_details", "cached_tokens")
    return {
        "input_tokens": max(0, answer.count("prompt_tokens") - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "cache_creation": None,
        "output_tokens": answer.count("completion_tokens"),
        "output_tokens_details": None,
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }


def _event(change: Change) -> dict[str, Any]:
    segment = change.segment
    if isinstance(change, Opened):
        block = _block(segment, whole=False)
        return {"type": "content_block_start", "index": segment.index, "content_block": block}
    if isinstance(change, Closed):
        return {"type": "content_block_stop", "index": segment.index}
    if segment.kind == "tool":
        delta = {"type": "input_json_delta", "partial_json": change.text}
    elif segment.kind == "reasoning":
        delta = {"type": "thinking_delta", "thinking": change.text}
    else:
        delta = {"type": "text_delta", "text": change.text}
    return {"type": "content_block_delta", "index": segment.index, "delta": delta}


def _block(segment: Segment, *, whole: bool) -> dict[str, Any]:
    """whole: with its content; else as a stream begins it."""
    text = segment.text if whole else ""
    if segment.kind == "tool":
        block = {"type": "tool_use", "id": segment.call_id, "name": segment.name}
        return {**block, "input": _arguments(text), "caller": {"type": "direct"}}
    if segment.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text, "citations": None}


def _arguments(text: str) -> dict[str, Any]:
    """A model may write what is no JSON object; clients of this API can only be given one."""
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    return arguments if isinstance(arguments, dict) else {}
