"""Streams of typed events as their makers write them."""

from __future__ import annotations

from typing import Any

import orjson


def typed(kind: str, **members: Any) -> bytes:
    body = orjson.dumps({"type": kind, **members})
    return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"


def response(status: str, **members: Any) -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 5, "status": status, "model": "m", "output": [],
        "error": None, "incomplete_details": None, "usage": None, **members,
    }  # fmt: skip


RESPONSE_USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 14,
}


def response_delta(text: str, number: int = 4) -> bytes:
    return typed(
        "response.output_text.delta",
        sequence_number=number,
        item_id="msg_1",
        output_index=0,
        content_index=0,
        delta=text,
        logprobs=[],
    )


RESPONSE_HEAD = (
    typed("response.created", sequence_number=0, response=response("in_progress")),
    typed("response.in_progress", sequence_number=1, response=response("in_progress")),
)
RESPONSE_END = typed(
    "response.completed", sequence_number=9, response=response("completed", usage=RESPONSE_USAGE)
)
RESPONSE = (*RESPONSE_HEAD, response_delta("Blue "), response_delta("whales", 5), RESPONSE_END)

MESSAGE_HEAD = (
    typed(
        "message_start",
        message={
            "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m",
            "stop_reason": None, "stop_sequence": None,
            "usage": {"input_tokens": 7, "cache_read_input_tokens": 4, "output_tokens": 1},
        },
    ),
    typed("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    typed("ping"),
)  # fmt: skip


def message_delta(text: str) -> bytes:
    return typed("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


MESSAGE_END = (
    typed("content_block_stop", index=0),
    typed(
        "message_delta",
        delta={"stop_reason": "max_tokens", "stop_sequence": None},
        usage={"output_tokens": 3},
    ),
    typed("message_stop"),
)
MESSAGE = (*MESSAGE_HEAD, message_delta("Blue "), message_delta("whales"), *MESSAGE_END)
