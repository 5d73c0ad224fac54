"""The OpenAI error object: how ours is written, and how an engine's is read.

What an engine says may hold paths, hosts, keys or a whole HTML page. Nothing of that reaches a
client: `upstream_error` picks the exception and keeps of the text what is safe and short.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from llm_runtime.core.errors import (
    BackendError,
    BackendUnavailable,
    BodyTooLarge,
    ContextLengthExceeded,
    InvalidRequest,
    LLMRuntimeError,
    UpstreamRefused,
)

MAX_UPSTREAM_TEXT = 300
"""Characters of an engine's message that a client may see."""

_CONTEXT_WORDS = ("context length", "context size", "maximum context", "context window")
_UNSAFE = (
    (re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.I), "[url]"),
    (re.compile(r"\bbearer\s+\S+", re.I), "[secret]"),
    (re.compile(r"\b(?:sk|pk|key|token)-[\w-]{6,}", re.I), "[secret]"),
    (re.compile(r"\b[A-Z]:\\[^\s'\"]+"), "[path]"),
    (re.compile(r"(?<![\w<])~?/(?:[\w.@+-]+/)*[\w.@+-]{2,}/?"), "[path]"),
    (re.compile(r"\b(?:localhost|(?:\d{1,3}\.){3}\d{1,3})(?::\d+)?\b"), "[host]"),
    (re.compile(r"\b(?:[\w-]+\.)+[a-z]{2,}:\d{2,5}\b", re.I), "[host]"),
)


def error_object(
    message: str, type: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The value of the `error` member: always all four keys."""
    return {"message": message, "type": type, "param": param, "code": code}


def error_body(error: dict[str, Any]) -> bytes:
    return orjson.dumps({"error": error})


def error_event(error: dict[str, Any]) -> bytes:
    """A whole SSE event."""
    return b"data: " + orjson.dumps({"error": error}) + b"\n\n"


def safe_text(text: str, limit: int = MAX_UPSTREAM_TEXT) -> str:
    """One printable line of at most `limit` characters without addresses, paths or secrets.

    Returns "" for a page of markup: nothing of it is worth telling.
    """
    head = text[: 4 * limit]
    if "<html" in head.lower() or "<!doctype" in head.lower():
        return ""
    line = "".join(char if char.isprintable() else " " for char in head)
    for pattern, replacement in _UNSAFE:
        line = pattern.sub(replacement, line)
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def upstream_error(payload: Any, status: int | None = None) -> LLMRuntimeError:
    """The exception for an engine's error: `payload` is its parsed JSON, in whatever shape.

    Knows `{"error": {...}}`, `{"error": "text"}`, `{"message": ...}`, `{"detail": ...}` and bare
    strings. status: of the HTTP response; without one an integer `code` inside counts as status.
    What the client can mend is InvalidRequest, what another try can mend is BackendUnavailable.
    Refusals of *our* credentials (401, 403, 404) are the operator's problem: UpstreamRefused.
    """
    error = payload.get("error", payload) if isinstance(payload, dict) else payload
    members = error if isinstance(error, dict) else {}
    text = safe_text(_text_of(error))
    code = members.get("code")
    if status is None or status < 400:
        status = code if isinstance(code, int) and not isinstance(code, bool) else None
    if _is_context_overflow(members, text):
        return ContextLengthExceeded(text or "The request is longer than the model's context.")
    if status == 413:
        return BodyTooLarge(text or "The engine refused the request as too large.")
    if status in (400, 422):
        param = members.get("param")
        param = safe_text(param, 64) if isinstance(param, str) and param else None
        return InvalidRequest(text or "The engine refused the request.", param=param)
    if status in (429, 503):
        return BackendUnavailable("The engine takes no requests at the moment.")
    if status in (401, 403, 404):
        return UpstreamRefused("The engine does not serve this gateway; its operator has to look at it.")
    return BackendError(f"The engine failed: {text}" if text else "The engine failed.")


def _text_of(error: Any) -> str:
    if isinstance(error, str):
        return error
    if isinstance(error, dict):
        for key in ("message", "detail", "msg", "error"):
            if isinstance(value := error.get(key), str):
                return value
    return ""


def _is_context_overflow(members: dict[str, Any], text: str) -> bool:
    words = {members.get("type"), members.get("code")} if members else set()
    if "exceed_context_size_error" in words or "context_length_exceeded" in words:
        return True
    return any(phrase in text.lower() for phrase in _CONTEXT_WORDS)
