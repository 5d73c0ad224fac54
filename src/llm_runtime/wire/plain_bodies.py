"""Plain answers of the families beside chat: checked, given the name clients know, else left as read."""

from __future__ import annotations

import re
from typing import Any

import orjson

from llm_runtime.core.errors import BackendProtocolError, UnsupportedEndpoint
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.bodies import PlainReply
from llm_runtime.wire.dialects import dialect_for, typed_dialect_for
from llm_runtime.wire.dialects.base import FAILED
from llm_runtime.wire.errors import upstream_error
from llm_runtime.wire.options import RelayOptions

MAX_PARSED_BYTES = 64 * 1024
"""Longer lists of numbers are looked over, not parsed: that would stop everybody's tokens."""

ENDS_BYTES = 4096
"""Where a long list's other members stand, at either end; looked at first."""

_TYPED = (EndpointKind.RESPONSES, EndpointKind.MESSAGES)
_ESSENTIAL = {EndpointKind.EMBEDDINGS: "data", EndpointKind.RERANK: "results"}

# A quote that ends a name and the colon behind it cannot stand inside a JSON string.
_MODEL = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")')
_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


def plain_reply(raw: bytes, options: RelayOptions) -> PlainReply:
    """An answer to anything but a chat or completion. Raises BackendError for what is none, and what
    an error body means."""
    if options.kind is EndpointKind.EMBEDDINGS and len(raw) > MAX_PARSED_BYTES:
        return _large_embeddings(raw, options)
    body = _parsed(raw)
    if options.kind in _TYPED:
        return _typed(raw, body, options)
    if body.get("error"):
        raise upstream_error(body)
    if options.kind is EndpointKind.TOKENIZE:
        _check_tokens(body)
    else:
        _check_list(body, _ESSENTIAL[options.kind])
    changed = False
    if isinstance(body.get("model"), str) and body["model"] != options.model:
        body["model"] = options.model
        changed = True
    if options.kind is EndpointKind.EMBEDDINGS:
        changed |= _complete(body, options)
    usage = dialect_for(options.kind).usage(body)
    return PlainReply(orjson.dumps(body) if changed else raw, usage, "stop")


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise BackendProtocolError("The engine's answer is not JSON.") from None
    if not isinstance(body, dict):
        raise BackendProtocolError("The engine's answer is no object.")
    return body


def _typed(raw: bytes, body: dict[str, Any], options: RelayOptions) -> PlainReply:
    dialect = typed_dialect_for(options.kind)
    failure = dialect.failure(body)
    if failure is not None:
        raise failure
    member = "output" if options.kind is EndpointKind.RESPONSES else "content"
    if not isinstance(body.get(member), list):
        raise BackendProtocolError(f"The engine's answer has no {member}.")
    reason = dialect.finish_reason(body) or "stop"
    shown = orjson.dumps(body) if dialect.show_model(body, options.model) else raw
    return PlainReply(shown, dialect.usage(body), reason, failed=reason == FAILED)


def _check_list(body: dict[str, Any], member: str) -> None:
    items = body.get(member)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BackendProtocolError(f"The engine's answer has no {member}.")


def _check_tokens(body: dict[str, Any]) -> None:
    if not isinstance(body.get("tokens"), list):
        raise BackendProtocolError("The engine's answer has no tokens.")
    if not isinstance(body.get("count"), int):
        # Other servers have a path of that name that takes other fields, and ignore ours.
        raise UnsupportedEndpoint("The model's server has another kind of /tokenize.", param="model")


def _complete(body: dict[str, Any], options: RelayOptions) -> bool:
    """Members that clients require and some servers leave out."""
    changed = False
    for member, value in (("object", "list"), ("model", options.model)):
        if body.get(member) != value:
            body[member] = value
            changed = True
    for index, item in enumerate(body["data"]):
        if "object" not in item or "index" not in item:
            item.update({"object": "embedding", "index": index, **item})
            changed = True
    return changed


def _large_embeddings(raw: bytes, options: RelayOptions) -> PlainReply:
    text = raw.strip()
    if not (text.startswith(b"{") and text.endswith(b"}")) or b'"data"' not in text:
        raise BackendProtocolError("The engine's answer has no data.")
    usage = _find(_USAGE, b'"usage"', text)
    counts = dialect_for(options.kind).usage({"usage": orjson.loads(usage[1])}) if usage else None
    shown = orjson.dumps(options.model)
    model = _find(_MODEL, b'"model"', raw)
    if model is not None and model[1] != shown:
        raw = raw[: model.start(1)] + shown + raw[model.end(1) :]
    return PlainReply(raw, counts, "stop")


def _find(pattern: re.Pattern[bytes], name: bytes, raw: bytes) -> re.Match[bytes] | None:
    at = raw.rfind(name, max(0, len(raw) - ENDS_BYTES))
    if at < 0:
        at = raw.find(name)
    return pattern.match(raw, at) if at >= 0 else None
