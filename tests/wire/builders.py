"""Streams made up for tests of the relay: events in vLLM's shape, and ways to read them."""

from __future__ import annotations

from typing import Any

import orjson

from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.relay import StreamRelay
from tests.wire.sdk import read_stream

OPTIONS = RelayOptions(kind=EndpointKind.CHAT, id="ours", created=1000, model="m")
PARAMETERS = (
    "kind", "id", "created", "model", "include_usage", "num_choices", "num_prompts", "prompt_tokens_estimate",
    "keep_engine_id", "usage_per_choice", "translate_logprobs", "drop_alternatives", "strip_members",
    "finish_aliases", "shapes",
)  # fmt: skip
DONE = b"data: [DONE]\n\n"


def event(delta: Any = None, finish: Any = None, index: int = 0, **members: Any) -> bytes:
    """An event in vLLM's shape."""
    choice = {"index": index, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    return frame(
        {
            "id": "e1",
            "object": "chat.completion.chunk",
            "created": 5,
            "model": "m",
            "choices": [choice],
            **members,
        }
    )


def frame(body: Any) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def text(content: str, **members: Any) -> bytes:
    return event({"content": content}, **members)


ROLE = event({"role": "assistant", "content": ""})
STOP = event(finish="stop")
USAGE = frame(
    {
        "id": "e1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m",
        "choices": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
)


def changed(options: RelayOptions, **changes: Any) -> RelayOptions:
    return RelayOptions(**{**{name: getattr(options, name) for name in PARAMETERS}, **changes})


def relay(**changes: Any) -> StreamRelay:
    return StreamRelay(changed(OPTIONS, **changes))


def drain(reader: StreamRelay, stream: bytes, out: list[bytes]) -> None:
    out.append(reader.feed(stream))
    out.append(reader.eof())


def run(stream: bytes, **changes: Any) -> list[dict[str, Any]]:
    reader = relay(**changes)
    out = reader.feed(stream)
    if not reader.done:
        out += reader.eof()
    return read_stream(out)
