"""The Responses dialect: typed events, the end told by the event that holds the whole response."""

from __future__ import annotations

from typing import Any

import orjson

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.dialects.base import FAILED
from llm_runtime.wire.errors import error_body, safe_text, upstream_error
from llm_runtime.wire.sse import KEEP_ALIVE
from llm_runtime.wire.usage import count_of

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_FAILURES = frozenset({"failed", "cancelled"})


class ResponsesDialect:
    kind = EndpointKind.RESPONSES
    keep_alive = KEEP_ALIVE

    def has_token(self, event: dict[str, Any]) -> bool:
        kind = event.get("type")
        return isinstance(kind, str) and kind.endswith(".delta") and bool(event.get("delta"))

    def usage(self, event: dict[str, Any]) -> Usage | None:
        usage = _response(event).get("usage")
        if not isinstance(usage, dict):
            return None
        prompt, completion = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
        if prompt is None or completion is None:
            return None
        details = usage.get("input_tokens_details")
        cached = count_of(details.get("cached_tokens")) if isinstance(details, dict) else None
        return Usage(prompt, completion, cached or 0)

    def error_event(self, error: dict[str, Any]) -> bytes:
        event = {
            "type": "error",
            "code": error["code"],
            "message": error["message"],
            "param": error["param"],
            "sequence_number": 0,
        }
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"

    def error_body(self, error: dict[str, Any]) -> bytes:
        return error_body(error)

    def is_end(self, event: dict[str, Any]) -> bool:
        return event.get("type") in _ENDS

    def finish_reason(self, event: dict[str, Any]) -> str | None:
        status = _response(event).get("status")
        if status == "incomplete":
            details = _response(event).get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else None
            return {"max_output_tokens": "length", "content_filter": "content_filter"}.get(
                str(reason), "incomplete"
            )
        return FAILED if status in _FAILURES else "stop" if status == "completed" else None

    def failure(self, event: dict[str, Any]) -> LLMRuntimeError | None:
        if event.get("type") == "error":
            return upstream_error(event)
        # A response has an `error` member of its own, null or the reason of its failure.
        is_response = isinstance(event.get("response"), dict) or event.get("object") == "response"
        return upstream_error(event) if event.get("error") and not is_response else None

    def show_model(self, event: dict[str, Any], model: str) -> bool:
        response = _response(event)
        changed = False
        if isinstance(response.get("model"), str) and response["model"] != model:
            response["model"] = model
            changed = True
        error = response.get("error")
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            told = safe_text(error["message"])
            changed |= told != error["message"]
            error["message"] = told
        return changed


def _response(event: dict[str, Any]) -> dict[str, Any]:
    """The response object inside an event; a plain body is one itself."""
    response = event.get("response")
    return response if isinstance(response, dict) else event
