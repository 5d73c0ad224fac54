"""The status table, a row for each leaf of the error tree, and whole error replies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_runtime.core import errors as e
from llm_runtime.wire import errors as wire

Header = tuple[bytes, bytes]
WriteError = Callable[[dict[str, Any]], bytes]


@dataclass(frozen=True, slots=True)
class Row:
    """retryable: what `x-should-retry` says when it differs from what clients assume by status."""

    status: int
    type: str
    retryable: bool | None = None


_INVALID = "invalid_request_error"
_SERVER = "server_error"

STATUS_TABLE: dict[type[e.LLMRuntimeError], Row] = {
    e.InvalidRequest: Row(400, _INVALID),
    e.ContextLengthExceeded: Row(400, _INVALID),
    e.ModelNotFound: Row(404, _INVALID),
    e.BodyTooLarge: Row(413, _INVALID),
    e.BodyTimeout: Row(408, _INVALID),
    e.HeadersTooLarge: Row(431, _INVALID),
    e.UnprocessableRequest: Row(422, _INVALID),
    e.UnsupportedEndpoint: Row(404, _INVALID),
    e.UnsupportedMediaType: Row(415, _INVALID),
    e.RouteNotFound: Row(404, _INVALID),
    e.MethodNotAllowed: Row(405, _INVALID),
    e.Unauthorized: Row(401, "authentication_error"),
    e.Forbidden: Row(403, "permission_error"),
    e.RateLimited: Row(429, "rate_limit_error"),
    # The types are OpenAI's words for which limit it was.
    e.RequestsLimited: Row(429, "requests"),
    e.TokensLimited: Row(429, "tokens"),
    e.ConcurrencyLimited: Row(429, "concurrent_requests"),
    e.NeverWithinLimit: Row(429, "tokens", retryable=False),
    e.LimiterUnavailable: Row(503, "service_unavailable_error"),
    e.QuotaExceeded: Row(429, "insufficient_quota", retryable=False),
    e.QueueFull: Row(503, "service_unavailable_error"),
    e.WouldMissDeadline: Row(503, "service_unavailable_error"),
    e.RetriesExhausted: Row(503, "service_unavailable_error"),
    e.Draining: Row(503, "service_unavailable_error"),
    e.QueueTimeout: Row(503, "service_unavailable_error"),
    e.Shed: Row(503, "service_unavailable_error"),
    e.DeadlineExceeded: Row(504, "timeout_error", retryable=False),
    e.ClientGone: Row(499, _INVALID),
    e.BackendError: Row(502, _SERVER),
    e.BackendUnavailable: Row(503, "service_unavailable_error"),
    e.UpstreamRateLimited: Row(429, "rate_limit_error"),
    e.UpstreamFailing: Row(503, "service_unavailable_error"),
    e.UpstreamRefused: Row(502, _SERVER, retryable=False),
    e.UpstreamUnauthorized: Row(401, _SERVER),
    e.UpstreamForbidden: Row(403, _SERVER),
    e.UpstreamNotFound: Row(404, _SERVER),
    e.BackendCrashed: Row(502, _SERVER, retryable=False),
    e.BackendProtocolError: Row(502, _SERVER),
    e.NotAnEventStream: Row(502, _SERVER),
    e.ConfigError: Row(500, _SERVER),
    e.LLMRuntimeError: Row(500, _SERVER),
}

INTERNAL_ERROR = e.LLMRuntimeError("The server had an internal error.")


def row_of(error: e.LLMRuntimeError) -> Row:
    """The row of the nearest class in the tree."""
    for kind in type(error).__mro__:
        row = STATUS_TABLE.get(kind)
        if row is not None:
            return row
    return STATUS_TABLE[e.LLMRuntimeError]


def error_object(error: e.LLMRuntimeError) -> dict[str, Any]:
    """OpenAI's error object: all four keys, always."""
    return wire.error_object(error.message, row_of(error).type, error.param, error.reason)


def error_response(
    error: e.LLMRuntimeError, request_id: str, write: WriteError = wire.error_body
) -> tuple[int, list[Header], bytes]:
    """Status, headers (x-request-id, length, retry hints) and body; `write` is the dialect's."""
    row = row_of(error)
    body = write(error_object(error))
    headers: list[Header] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
    ]
    retry_after_s = error.retry_after_s
    if retry_after_s is None and row.status == 503:
        retry_after_s = 1.0
    if retry_after_s is not None and row.retryable is not False:
        # RFC 9110 10.2.3 wants whole seconds; the exact wait stands beside it.
        headers.append((b"retry-after", str(max(1, math.ceil(retry_after_s))).encode()))
        headers.append((b"retry-after-ms", str(max(1, math.ceil(retry_after_s * 1000))).encode()))
    if row.retryable is not None:
        headers.append((b"x-should-retry", b"true" if row.retryable else b"false"))
    if isinstance(error, e.Draining | e.BodyTooLarge | e.BodyTimeout):
        headers.append((b"connection", b"close"))
    if row.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return row.status, headers, body
