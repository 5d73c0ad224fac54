"""Plain replies of engines: checked, completed, and turned into a stream where a stream was asked."""

from __future__ import annotations

from typing import Any, Final

import orjson

from llm_runtime.core.errors import BackendProtocolError
from llm_runtime.core.outcome import Usage
from llm_runtime.wire.errors import upstream_error
from llm_runtime.wire.events import finish_reason
from llm_runtime.wire.logprobs import is_chat_shape, legacy_logprobs
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.sse import DONE
from llm_runtime.wire.usage import read_usage, usage_object

_dumps: Final = orjson.dumps
_loads: Final = orjson.loads
_NoJson: Final = orjson.JSONDecodeError


class PlainReply:
    """raw: the JSON for the client. usage: None if the engine did not say. finish_reason: of choice 0.

    failed: a whole answer that says itself that it failed.
    """

    __slots__ = ("failed", "finish_reason", "raw", "usage")

    def __init__(self, raw: bytes, usage: Usage | None, finish_reason: str, failed: bool = False) -> None:
        self.raw: Final = raw
        self.usage: Final = usage
        self.finish_reason: Final = finish_reason
        self.failed: Final = failed


def normalise_body(raw: bytes, options: RelayOptions) -> PlainReply:
    """An engine's plain reply as clients require it: as read, where nothing of it had to be changed.

    Raises BackendProtocolError for what is not one (a page, half a JSON text, nothing), and the
    exception of an `{"error": ...}` object.
    """
    body = _parsed(raw)
    usage = read_usage(body.get("usage"))
    changed = _shape(body, usage, options)
    reason: str = body["choices"][0]["finish_reason"]
    return PlainReply(_dumps(body) if changed else raw, usage, reason)


def stream_of_body(raw: bytes, options: RelayOptions) -> PlainReply:
    """The same, as a whole event stream: for an engine that ignored `stream`. Raises likewise."""
    body = _parsed(raw)
    usage = read_usage(body.get("usage"))
    _shape(body, usage, options)
    members = {key: value for key, value in body.items() if key not in ("choices", "usage")}
    head = {**members, "object": options.chunk_object}
    null_usage = {"usage": None} if options.include_usage else {}
    events: list[dict[str, Any]] = [
        {**head, "choices": [chunk], **null_usage} for choice in body["choices"] for chunk in _chunks(choice)
    ]
    if options.include_usage:
        reported = body.get("usage") or usage_object(Usage(options.prompt_tokens_estimate))
        events.append({**head, "choices": [], "usage": reported})
    stream = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + DONE
    return PlainReply(stream, usage, body["choices"][0]["finish_reason"])


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        body = _loads(raw)
    except _NoJson:
        raise BackendProtocolError("The engine's answer is not JSON.") from None
    if not isinstance(body, dict):
        raise BackendProtocolError("The engine's answer is no object.")
    return body


def _shape(body: dict[str, Any], usage: Usage | None, options: RelayOptions) -> bool:
    """Brings a parsed reply into shape, in place. usage: what it reports. Returns whether anything had to
    be changed."""
    if "error" in body:
        if body["error"]:
            raise upstream_error(body)
        del body["error"]
        changed = True
    else:
        changed = False
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        raise BackendProtocolError("The engine's answer has no choices.")
    for position, choice in enumerate(choices):
        if not isinstance(choice, dict):
            raise BackendProtocolError("The engine sent a choice that is no object.")
        changed = _shape_choice(choice, position, options) or changed
    engine_id = body.get("id")
    if not (options.keep_engine_id and isinstance(engine_id, str) and engine_id) and engine_id != options.id:
        body["id"] = options.id
        changed = True
    created = body.get("created")
    if not isinstance(created, int) or isinstance(created, bool) or created <= 0:
        body["created"] = options.created
        changed = True
    if body.get("object") != options.body_object:
        body["object"] = options.body_object
        changed = True
    if body.get("model") != options.model:
        body["model"] = options.model
        changed = True
    if options.strip_members:
        for key in body.keys() & options.strip_members:
            del body[key]
            changed = True
    return _shape_usage(body, usage) or changed


def _shape_usage(body: dict[str, Any], usage: Usage | None) -> bool:
    if usage is None:
        if "usage" not in body:
            return False
        del body["usage"]
        return True
    reported = body["usage"]
    total = usage.prompt_tokens + usage.completion_tokens
    if (
        "prompt_tokens_details" in reported
        and "completion_tokens" in reported
        and type(reported.get("total_tokens")) is int
        and reported["total_tokens"] == total
    ):
        return False
    body["usage"] = {**usage_object(usage), **reported, "total_tokens": total}
    return True


def _shape_choice(choice: dict[str, Any], position: int, options: RelayOptions) -> bool:
    changed = False
    index = choice.get("index")
    if not isinstance(index, int) or isinstance(index, bool):
        choice["index"] = position
        changed = True
    said = choice.get("finish_reason")
    reason = finish_reason(said, options)
    if reason != said:
        choice["finish_reason"] = reason
        changed = True
    if "logprobs" not in choice:
        choice["logprobs"] = None
        changed = True
    if not options.is_chat:
        return _shape_text(choice, options) or changed
    message = choice.get("message")
    if not isinstance(message, dict):
        raise BackendProtocolError("The engine's answer has no message.")
    if message.get("role") != "assistant":
        message["role"] = "assistant"
        changed = True
    if "content" not in message:
        message["content"] = None
        changed = True
    if "refusal" not in message:
        message["refusal"] = None
        changed = True
    return changed


def _shape_text(choice: dict[str, Any], options: RelayOptions) -> bool:
    if not isinstance(choice.get("text"), str):
        raise BackendProtocolError("The engine's answer has no text.")
    logprobs = choice["logprobs"]
    if not options.translate_logprobs or not is_chat_shape(logprobs):
        return False
    choice["logprobs"] = legacy_logprobs(logprobs, 0)
    return True


def _chunks(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """One choice of a plain reply as the choices of two chunks: all of it, then its finish."""
    rest = {k: v for k, v in choice.items() if k not in ("message", "text", "finish_reason", "logprobs")}
    first = {**rest, "logprobs": choice["logprobs"], "finish_reason": None}
    last = {**rest, "logprobs": None, "finish_reason": choice["finish_reason"]}
    if "message" not in choice:
        return [{**first, "text": choice["text"]}, {**last, "text": ""}]
    delta = {key: value for key, value in choice["message"].items() if value is not None}
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    return [{**first, "delta": delta}, {**last, "delta": {}}]
