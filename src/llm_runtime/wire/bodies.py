"""Plain replies of engines: checked, completed, and turned into a stream where a stream was asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from llm_runtime.core.errors import BackendProtocolError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.quick import quick
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.errors import upstream_error
from llm_runtime.wire.events import finish_reason
from llm_runtime.wire.logprobs import is_chat_shape, legacy_logprobs
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.sse import DONE
from llm_runtime.wire.usage import read_usage, usage_object


@quick
@dataclass(frozen=True, slots=True)
class PlainReply:
    """raw: the JSON for the client. usage: None if the engine did not say. finish_reason: of choice 0.

    failed: a whole answer that says itself that it failed.
    """

    raw: bytes
    usage: Usage | None
    finish_reason: str
    failed: bool = False


def normalise_body(raw: bytes, options: RelayOptions) -> PlainReply:
    """An engine's plain reply as clients require it.

    Raises BackendProtocolError for what is not one (a page, half a JSON text, nothing), and the
    exception of an `{"error": ...}` object.
    """
    body = _shaped(raw, options)
    return PlainReply(orjson.dumps(body), read_usage(body.get("usage")), body["choices"][0]["finish_reason"])


def stream_of_body(raw: bytes, options: RelayOptions) -> PlainReply:
    """The same, as a whole event stream: for an engine that ignored `stream`. Raises likewise."""
    body = _shaped(raw, options)
    usage = read_usage(body.get("usage"))
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


def _shaped(raw: bytes, options: RelayOptions) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise BackendProtocolError("The engine's answer is not JSON.") from None
    if not isinstance(body, dict):
        raise BackendProtocolError("The engine's answer is no object.")
    if body.get("error"):
        raise upstream_error(body)
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        raise BackendProtocolError("The engine's answer has no choices.")
    for position, choice in enumerate(choices):
        if not isinstance(choice, dict):
            raise BackendProtocolError("The engine sent a choice that is no object.")
        _shape_choice(choice, position, options)
    engine_id, created = body.get("id"), body.get("created")
    is_id = options.keep_engine_id and isinstance(engine_id, str) and engine_id
    is_time = isinstance(created, int) and not isinstance(created, bool) and created > 0
    shaped: dict[str, Any] = {
        "id": engine_id if is_id else options.id,
        "object": options.body_object,
        "created": created if is_time else options.created,
        "model": options.model,
        "choices": choices,
    }
    for key in body.keys() - shaped.keys() - options.strip_members - {"usage", "error"}:
        shaped[key] = body[key]
    if (usage := read_usage(body.get("usage"))) is not None:
        shaped["usage"] = {**usage_object(usage), **body["usage"]}
        shaped["usage"]["total_tokens"] = usage.prompt_tokens + usage.completion_tokens
    return shaped


def _shape_choice(choice: dict[str, Any], position: int, options: RelayOptions) -> None:
    index = choice.get("index")
    if not isinstance(index, int) or isinstance(index, bool):
        choice["index"] = position
    choice["finish_reason"] = finish_reason(choice.get("finish_reason"), options)
    logprobs = choice.setdefault("logprobs", None)
    if options.kind is EndpointKind.CHAT:
        message = choice.get("message")
        if not isinstance(message, dict):
            raise BackendProtocolError("The engine's answer has no message.")
        message["role"] = "assistant"
        message.setdefault("content", None)
        message.setdefault("refusal", None)
    elif not isinstance(choice.get("text"), str):
        raise BackendProtocolError("The engine's answer has no text.")
    elif options.translate_logprobs and is_chat_shape(logprobs):
        choice["logprobs"] = legacy_logprobs(logprobs, 0)


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
