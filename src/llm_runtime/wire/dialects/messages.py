"""The Messages dialect, Anthropic's: typed events, usage in two of them, errors in their own shape."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.errors import upstream_error
from llm_runtime.wire.sse import KEEP_ALIVE
from llm_runtime.wire.usage import count_of

_STATUS: Mapping[str, int] = MappingProxyType(
    {
        "invalid_request_error": 400,
        "authentication_error": 401,
        "billing_error": 402,
        "permission_error": 403,
        "not_found_error": 404,
        "request_too_large": 413,
        "rate_limit_error": 429,
        "overloaded_error": 503,
    }
)

_TYPE_BY_CODE = {
    "model_not_found": "not_found_error",
    "not_found": "not_found_error",
    "unsupported_endpoint": "not_found_error",
    "request_too_large": "request_too_large",
}

_TYPE_BY_TYPE = {
    "server_error": "api_error",
    "service_unavailable_error": "overloaded_error",
    "insufficient_quota": "rate_limit_error",
}

_TEXTS = ("text", "thinking", "partial_json")


class MessagesDialect:
    kind = EndpointKind.MESSAGES
    keep_alive = KEEP_ALIVE

    def has_token(self, event: dict[str, Any]) -> bool:
        delta = event.get("delta")
        if event.get("type") != "content_block_delta" or not isinstance(delta, dict):
            return False
        return any(delta.get(member) for member in _TEXTS)

    def usage(self, event: dict[str, Any]) -> Usage | None:
        """Of `message_start` the prompt's part, of `message_delta` what was generated so far."""
        usage = _message(event).get("usage")
        if not isinstance(usage, dict):
            return None
        counts = [
            count_of(usage.get(name)) or 0
            for name in (
                "input_tokens",
                "cache_read_input_tokens",
                "cache_creation_input_tokens",
                "output_tokens",
            )
        ]
        # Their input_tokens leave out what the cache had or was given.
        return Usage(sum(counts[:3]), counts[3], counts[1])

    def error_event(self, error: dict[str, Any]) -> bytes:
        return b"event: error\ndata: " + self.error_body(error) + b"\n\n"

    def error_body(self, error: dict[str, Any]) -> bytes:
        kind = _TYPE_BY_CODE.get(error["code"]) or _TYPE_BY_TYPE.get(error["type"], error["type"])
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": error["message"]}})

    def is_end(self, event: dict[str, Any]) -> bool:
        return event.get("type") == "message_stop"

    def finish_reason(self, event: dict[str, Any]) -> str | None:
        delta = event.get("delta")
        said = (delta if isinstance(delta, dict) else _message(event)).get("stop_reason")
        return said if isinstance(said, str) else None

    def failure(self, event: dict[str, Any]) -> LLMRuntimeError | None:
        error = event.get("error")
        if event.get("type") != "error" and not error:
            return None
        kind = error.get("type") if isinstance(error, dict) else None
        return upstream_error(event, _STATUS.get(kind) if isinstance(kind, str) else None)

    def show_model(self, event: dict[str, Any], model: str) -> bool:
        message = _message(event)
        if not isinstance(message.get("model"), str) or message["model"] == model:
            return False
        message["model"] = model
        return True


def _message(event: dict[str, Any]) -> dict[str, Any]:
    """The message inside `message_start`; a plain body is one itself."""
    message = event.get("message")
    return message if isinstance(message, dict) else event
