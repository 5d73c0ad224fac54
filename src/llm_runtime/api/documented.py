"""How the inference endpoints appear in the OpenAPI page: they are served in front of FastAPI, so it
has to be told what they answer."""

from __future__ import annotations

from typing import Any, NoReturn

from llm_runtime.web.errors import STATUS_TABLE

_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

OTHER_ERRORS: dict[int | str, dict[str, Any]] = {
    # Faults of parameters are 400s here; naming this keeps FastAPI from promising a 422.
    "default": {
        "description": "Any other error, in the same shape.",
        "content": {"application/json": {"schema": _ERROR_SCHEMA}},
    }
}
"""For every route."""

_MEANINGS = {
    400: "The request is wrong in itself; `param` names the field.",
    401: "No API key, or one that is not known.",
    404: "There is no such model, or what serves it has no such endpoint.",
    408: "The body was not sent in time.",
    413: "The body is larger than allowed.",
    415: "The body is not sent as JSON.",
    422: "The upstream finds no sense in the request.",
    429: "A rate limit is reached; `retry-after` says for how long.",
    500: "A fault of the server.",
    502: "The engine failed.",
    503: "Too busy, starting or stopping; `retry-after` says when to come back.",
    504: "A time limit passed before the answer was complete.",
}


def responses(reply: str, chunk: str | None = None, *, done: bool = True) -> dict[int | str, dict[str, Any]]:
    """For an inference endpoint; `reply` and `chunk` say in words what it answers, plain and streamed.

    done: the stream ends with `[DONE]`.
    """
    statuses = {row.status for row in STATUS_TABLE.values()} & _MEANINGS.keys()
    told, content = f"{reply}.", {"application/json": {"schema": {"type": "object"}}}
    if chunk is not None:
        end = ", then `[DONE]`" if done else ""
        told = f"{reply}; with `stream`, server-sent events of {chunk}{end}."
        content["text/event-stream"] = {"schema": {"type": "string"}}
    documented: dict[int | str, dict[str, Any]] = {200: {"description": told, "content": content}}
    for status in sorted(statuses):
        documented[status] = {
            "description": _MEANINGS[status],
            "content": {"application/json": {"schema": _ERROR_SCHEMA}},
        }
    return documented


def never_called() -> NoReturn:
    raise AssertionError("this path is served in front of FastAPI")
