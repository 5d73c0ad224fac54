"""The chat completions dialect."""

from __future__ import annotations

from typing import Any

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.errors import error_body, error_event
from llm_runtime.wire.sse import KEEP_ALIVE
from llm_runtime.wire.usage import read_usage

TEXT_MEMBERS = ("content", "reasoning_content", "reasoning", "refusal")
"""Members of a delta or message whose text is tokens."""


def delta_has_token(delta: dict[str, Any]) -> bool:
    """Text, or a piece of a tool call's arguments. A role or a call's name alone is not a token."""
    for member in TEXT_MEMBERS:
        if delta.get(member):
            return True
    if delta.get("tool_calls"):
        return any(_call_has_token(call) for call in delta["tool_calls"])
    if (call := delta.get("function_call")) and isinstance(call, dict):
        return bool(call.get("arguments"))
    audio = delta.get("audio")
    return isinstance(audio, dict) and bool(audio.get("data") or audio.get("transcript"))


def _call_has_token(call: Any) -> bool:
    if not isinstance(call, dict):
        return False
    function, custom = call.get("function"), call.get("custom")
    return bool(
        (isinstance(function, dict) and function.get("arguments"))
        or (isinstance(custom, dict) and custom.get("input"))
    )


class ChatDialect:
    kind = EndpointKind.CHAT
    keep_alive = KEEP_ALIVE

    def has_token(self, event: dict[str, Any]) -> bool:
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or choice.get("message")
            if isinstance(delta, dict) and delta_has_token(delta):
                return True
        return False

    def usage(self, event: dict[str, Any]) -> Usage | None:
        return read_usage(event.get("usage"))

    def error_event(self, error: dict[str, Any]) -> bytes:
        return error_event(error)

    def error_body(self, error: dict[str, Any]) -> bytes:
        return error_body(error)
