"""Classes of failure: few and stable words, by which failures are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_runtime.core.errors import BackendProtocolError, BackendUnavailable, LLMRuntimeError

MAX_MESSAGE = 200

ERROR_EVENT = "error_event"
"""The stream carried an `error` object."""
STREAM_CUT = "stream_cut"
"""The connection was lost within an answer."""
STREAM_WITHOUT_FINISH = "stream_without_finish"
STREAM_WITHOUT_DONE = "stream_without_done"
NOT_A_STREAM = "not_a_stream"
BAD_ANSWER = "bad_answer"
"""Not HTTP, not SSE or not JSON."""
ABORTED = "aborted_by_server"
"""A finish reason that says the server gave up."""
TIMEOUT = "timeout"
DRAIN_TIMEOUT = "drain_timeout"
INTERRUPTED = "interrupted"
CONNECT_TIMEOUT = "connect_timeout"
CONNECTION_REFUSED = "connection_refused"
CONNECT_FAILED = "connect_failed"
CONNECTION_LOST = "connection_lost"
"""Before any byte of an answer."""


@dataclass(frozen=True, slots=True)
class Problem:
    """error: one of this module's words, or `http_503` and its like. code: the server's own word."""

    error: str
    message: str = ""
    code: str | None = None


def of_transport(error: LLMRuntimeError, *, has_started: bool) -> Problem:
    """What the HTTP client reports; `has_started`: whether any byte of an answer had come."""
    cause = error.__cause__
    if isinstance(error, BackendUnavailable):
        if isinstance(cause, TimeoutError):
            kind = CONNECT_TIMEOUT
        else:
            kind = CONNECTION_REFUSED if isinstance(cause, ConnectionRefusedError) else CONNECT_FAILED
        return Problem(kind, f"{error.message} {cause or ''}".strip()[:MAX_MESSAGE])
    if isinstance(error, BackendProtocolError) and "valid HTTP" in error.message:
        return Problem(BAD_ANSWER, error.message)
    return Problem(STREAM_CUT if has_started else CONNECTION_LOST, error.message[:MAX_MESSAGE])


def of_status(status: int, body: Any) -> Problem:
    """An answer other than 200; body: parsed, in OpenAI's shape or any other."""
    message, code = described(body)
    return Problem(f"http_{status}", message, code)


def of_event(error: Any) -> Problem:
    """The `error` member of an event."""
    message, code = described({"error": error})
    return Problem(ERROR_EVENT, message, code)


def described(body: Any) -> tuple[str, str | None]:
    """(message, code) of an OpenAI error body; tolerant of the shapes that servers use instead."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return str(error or "")[:MAX_MESSAGE], None
    code = error.get("code") or error.get("type")
    message = error.get("message") or error.get("detail") or ""
    return str(message)[:MAX_MESSAGE], None if code is None else str(code)[:MAX_MESSAGE]
