"""What the stub says, as bytes: events in the shape of vLLM's, each in a chunk of its own.

FROZEN, as `stub_upstream` is, whose half it is. Pure but for the clock that tokens are stamped with.
"""

from __future__ import annotations

import re
import time
from typing import Any

import orjson

MODEL = "stub"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
MODELS = orjson.dumps(
    {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "stub",
                                 "root": MODEL, "parent": None, "max_model_len": 1_000_000}]}
)  # fmt: skip
SAFE_NAME = re.compile(r"[\w./:-]{1,100}")
DONE = b"data: [DONE]\n\n"
PROMPT_TOKENS = 10
PLAIN_TOKENS = 64
PLAIN_TEXT = " ".join(["word"] * PLAIN_TOKENS)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stamp() -> bytes:
    """Now, in microseconds of the monotonic clock."""
    return b"%015d" % int(time.monotonic() * 1e6)


class Events:
    """The chunks of one stream. num_tokens: as many as the request asks for, else 16."""

    def __init__(self, number: int, request: dict[str, Any]) -> None:
        """number: of the request, part of its id."""
        self.num_tokens = int(request.get("max_tokens") or request.get("max_completion_tokens") or 16)
        options = request.get("stream_options") or {}
        self._with_usage = bool(options.get("include_usage"))
        name = request.get("model")
        model = name if isinstance(name, str) and SAFE_NAME.fullmatch(name) else MODEL
        self._envelope = (
            f'{{"id":"chatcmpl-{number:032x}","object":"chat.completion.chunk",'
            f'"created":{int(time.time())},"model":"{model}",'
        ).encode()
        token = self._event(
            b'"choices":[{"index":0,"delta":{"content":" ' + stamp() + b'"},"logprobs":null,'
            b'"finish_reason":null,"token_ids":null}]}'
        )
        before, _, after = token.partition(b'"content":" ')
        self._before, self._after = before + b'"content":" ', after[15:]

    def token(self) -> bytes:
        return self._before + stamp() + self._after

    def role(self) -> bytes:
        return self._event(
            b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}],"prompt_token_ids":null}'
        )

    def end(self) -> bytes:
        """The last token with its finish reason, unless it was the only one; usage; the end."""
        delta = b'{"content":" ' + stamp() + b'"}' if self.num_tokens > 1 else b"{}"
        finish = self._event(
            b'"choices":[{"index":0,"delta":' + delta + b',"logprobs":null,"finish_reason":"length",'
            b'"stop_reason":null,"token_ids":null}]}'
        )
        usage = b""
        if self._with_usage:
            counts = (PROMPT_TOKENS, PROMPT_TOKENS + self.num_tokens, self.num_tokens)
            usage = self._event(
                b'"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}'
                % counts
            )
        return finish + usage + chunk(DONE) + b"0\r\n\r\n"

    def _event(self, rest: bytes) -> bytes:
        return chunk(b"data: " + self._envelope + rest + b"\n\n")


def plain(number: int, request: dict[str, Any]) -> bytes:
    """The body of a plain reply."""
    message: dict[str, Any] = {"role": "assistant", "content": PLAIN_TEXT, "refusal": None,
                               "tool_calls": [], "reasoning": None}  # fmt: skip
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length",
              "stop_reason": None, "token_ids": None}  # fmt: skip
    usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + PLAIN_TOKENS,
             "completion_tokens": PLAIN_TOKENS, "prompt_tokens_details": None}  # fmt: skip
    return orjson.dumps(
        {"id": f"chatcmpl-{number:032x}", "object": "chat.completion", "created": int(time.time()),
         "model": request.get("model"), "choices": [choice], "service_tier": None,
         "system_fingerprint": None, "usage": usage, "prompt_logprobs": None, "kv_transfer_params": None}
    )  # fmt: skip
