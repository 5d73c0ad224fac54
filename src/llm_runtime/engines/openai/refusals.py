"""What an upstream's refusal means for our client.

What the client can mend keeps its status and, made safe, its words. That the upstream is busy is
passed on with the time it asks for. Refusals of our credentials or our configuration are the
operator's business: the client learns nothing but the status, and that it is not its fault.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson
import structlog

from llm_runtime.core.errors import (
    BackendError,
    BackendProtocolError,
    BackendUnavailable,
    InvalidRequest,
    LLMRuntimeError,
    ModelNotFound,
    UnprocessableRequest,
    UnsupportedEndpoint,
    UpstreamFailing,
    UpstreamForbidden,
    UpstreamNotFound,
    UpstreamRateLimited,
    UpstreamRefused,
    UpstreamUnauthorized,
)
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.wire.errors import safe_text, upstream_error

log = structlog.get_logger(__name__)

DEFAULT_RETRY_AFTER_S = 1.0
"""Where a busy upstream names no time: a retry by us at once would only add to its load."""

MAX_RETRY_AFTER_S = 3600.0

_NO_SUCH_MODEL = re.compile(r"\bmodel\b.*\b(?:not (?:found|exist)|no such|unknown)\b", re.I | re.S)
_ALWAYS_THERE = frozenset({EndpointKind.CHAT, EndpointKind.COMPLETIONS})
_NO_CREDIT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_BUSY_WORDS = frozenset(
    {"overloaded", "overloaded_error", "queue_full", "server_is_overloaded", "server_overloaded", "slow_down"}
)
_NOT_OURS = "The upstream does not serve this gateway; its operator has to look at it."
_REFUSALS: Mapping[int, type[UpstreamRefused]] = {401: UpstreamUnauthorized, 403: UpstreamForbidden}


def refusal(
    exchange: Exchange,
    body: bytes,
    request: RuntimeRequest,
    wall: Callable[[], float] = time.time,
    *,
    upstream: str = "",
) -> LLMRuntimeError:
    """Of an answer with another status than 200. wall: Unix seconds, for a Retry-After that is a date.
    upstream: its name, for the log."""
    status = exchange.status
    payload = _payload(body)
    error = _meaning(status, payload, request, retry_after_s(exchange.headers, wall()))
    if not isinstance(error, InvalidRequest):
        log.warning(
            "upstream.refused",
            upstream=upstream,
            request_id=request.id,
            status=status,
            content_type=safe_text(exchange.headers.get(b"content-type", b"").decode("latin-1"), 100),
            num_bytes=len(body),
            detail=_told(payload, body),
        )
    return error


def _meaning(
    status: int, payload: Any, request: RuntimeRequest, retry_after: float | None
) -> LLMRuntimeError:
    if status < 400:
        return BackendProtocolError("The upstream gave an answer that is not the protocol it speaks.")
    if status in (429, 503, 529, 408) and not _members(payload) & _NO_CREDIT:
        return _not_now(status, payload, retry_after)
    if status in (404, 405, 501):
        return _not_there(status, payload, request)
    if status == 422:
        error = upstream_error(payload, 400)
        if type(error) is InvalidRequest:
            return UnprocessableRequest(error.message, param=error.param)
        return error
    if status in (400, 413):
        return upstream_error(payload if payload is not None else {}, status)
    if status == 429:
        return BackendError("The upstream takes no requests of this gateway any more.")
    if status < 500:
        return _REFUSALS.get(status, UpstreamRefused)(_NOT_OURS)
    return BackendError(f"The upstream failed with status {status}.")


def _not_now(status: int, payload: Any, retry_after: float | None) -> LLMRuntimeError:
    """Busy, if it says so by its status, a time or a known word. A bare 503 may as well come from
    whatever stands before a server that is dead."""
    text = "The upstream takes no requests at the moment."
    if status == 503 and retry_after is None and not _members(payload) & _BUSY_WORDS:
        return UpstreamFailing(text)
    kind = UpstreamRateLimited if status == 429 else BackendUnavailable
    return kind(text, retry_after_s=DEFAULT_RETRY_AFTER_S if retry_after is None else retry_after)


def _not_there(status: int, payload: Any, request: RuntimeRequest) -> LLMRuntimeError:
    words = " ".join(str(value) for value in _values(payload))
    if "unsupported_endpoint" in _members(payload):
        return UnsupportedEndpoint("The model's server does not support this endpoint.", param="model")
    if status == 404 and ("model_not_found" in _members(payload) or _NO_SUCH_MODEL.search(words)):
        # It listed the model, or the operator named it: by now it is gone.
        return ModelNotFound("The upstream does not have this model at the moment.", param="model")
    if request.kind not in _ALWAYS_THERE:
        return UnsupportedEndpoint("The model's server does not support this endpoint.", param="model")
    return (UpstreamNotFound if status == 404 else UpstreamRefused)(_NOT_OURS)


def retry_after_s(headers: Mapping[bytes, bytes], wall_now: float) -> float | None:
    """Seconds, from `retry-after-ms` or `retry-after` (a number or a date); None where neither is of
    use."""
    for name, scale in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            wait_s = float(text) * scale
        except ValueError:
            try:
                wait_s = parsedate_to_datetime(text.decode("latin-1")).timestamp() - wall_now
            except ValueError:
                continue
        if not math.isnan(wait_s):
            return min(max(wait_s, 0.0), MAX_RETRY_AFTER_S)
    return None


def _payload(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _members(payload: Any) -> set[Any]:
    """The words in `type` and `code`."""
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    if not isinstance(error, dict):
        return set()
    return {value for value in (error.get("type"), error.get("code")) if isinstance(value, str)}


def _values(payload: Any) -> list[Any]:
    error = payload.get("error", payload) if isinstance(payload, dict) else payload
    if isinstance(error, dict):
        return [error.get(name) for name in ("message", "code", "type", "param", "detail")]
    return [error]


def _told(payload: Any, body: bytes) -> str:
    """For the log: of JSON what it says, of a page that it is one."""
    if payload is None:
        return safe_text(body[:400].decode(errors="replace"))
    return safe_text(" ".join(str(value) for value in _values(payload) if value is not None))
