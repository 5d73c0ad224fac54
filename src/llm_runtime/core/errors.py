"""The one error tree. Status codes are not here: they live in `web/errors.py`, a row for each leaf.

`reason` is a low-cardinality word for metrics; `message` is what the client reads, so it never
carries a path, a host or a secret. `param` names the offending request field, where there is one.
"""

from __future__ import annotations

from llm_runtime.core.standing import Standing


class LLMRuntimeError(Exception):
    """Root of everything the runtime raises on purpose.

    reason: stable snake_case word, used as metric label and as the `code` of the error body.
    retryable: whether the same request may succeed later without being changed.
    retry_after_s: seconds until a retry makes sense, None where unknown.
    """

    reason = "internal_error"
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if reason is not None:
            self.reason = reason
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(LLMRuntimeError):
    """The request is wrong in itself; sending it again cannot help."""

    reason = "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    reason = "context_length_exceeded"


class ModelNotFound(InvalidRequest):
    reason = "model_not_found"


class BodyTooLarge(InvalidRequest):
    reason = "request_too_large"


class BodyTimeout(InvalidRequest):
    """The client did not finish sending its body."""

    reason = "body_timeout"
    retryable = True


class UnprocessableRequest(InvalidRequest):
    """Well formed, and an upstream says that it makes no sense."""

    reason = "unprocessable_request"


class UnsupportedEndpoint(InvalidRequest):
    """The model exists, but whatever serves it has no such API."""

    reason = "unsupported_endpoint"


class HeadersTooLarge(InvalidRequest):
    reason = "headers_too_large"


class UnsupportedMediaType(InvalidRequest):
    reason = "unsupported_media_type"


class RouteNotFound(InvalidRequest):
    reason = "not_found"


class MethodNotAllowed(InvalidRequest):
    reason = "method_not_allowed"


class Unauthorized(LLMRuntimeError):
    reason = "invalid_api_key"


class Forbidden(LLMRuntimeError):
    reason = "forbidden"


class Rejected(LLMRuntimeError):
    """Never queued: refused by the identity gate or the capacity gate."""

    reason = "rejected"
    retryable = True


class RateLimited(Rejected):
    """standing: of the tenant whose limit it was; None where the limit is everybody's."""

    reason = "rate_limit_exceeded"
    standing: Standing | None = None


class RequestsLimited(RateLimited):
    """The tenant's requests per minute are used up."""


class TokensLimited(RateLimited):
    """The tenant's tokens per minute are used up."""


class ConcurrencyLimited(RateLimited):
    """The tenant has as many requests in flight as it may."""


class NeverWithinLimit(RateLimited):
    """The request alone asks for more than its tenant's limit, so it can never pass."""

    reason = "request_exceeds_rate_limit"
    retryable = False


class LimiterUnavailable(Rejected):
    """What keeps the tenants' limits cannot be asked, and nobody passes unasked."""

    reason = "limiter_unavailable"


class QuotaExceeded(Rejected):
    reason = "insufficient_quota"
    retryable = False


class QueueFull(Rejected):
    reason = "queue_full"


class WouldMissDeadline(Rejected):
    reason = "would_miss_deadline"


class RetriesExhausted(Rejected):
    """Nothing but retries would be served if all of them were let in."""

    reason = "retry_budget_exhausted"


class Draining(Rejected):
    reason = "draining"


class Evicted(LLMRuntimeError):
    """Queued, then removed before any engine saw it; or preempted, where that is configured."""

    reason = "evicted"
    retryable = True


class QueueTimeout(Evicted):
    reason = "queue_timeout"


class Shed(Evicted):
    reason = "shed"


class DeadlineExceeded(LLMRuntimeError):
    """An engine had the request and a time limit ended it; tokens may have been spent."""

    reason = "deadline_exceeded"


class ClientGone(LLMRuntimeError):
    """Nobody reads the answer any more: not a failure of ours, and never sent to anybody."""

    reason = "client_gone"


class BackendError(LLMRuntimeError):
    """The engine, or the way to it, failed. num_sends: how often the request had gone out to it."""

    reason = "backend_error"
    retryable = True
    num_sends = 1


class BackendUnavailable(BackendError):
    """No engine took the request: nothing was computed, so trying elsewhere is always safe."""

    reason = "backend_unavailable"


class UpstreamRateLimited(BackendUnavailable):
    """An upstream's own limit refused the request."""

    reason = "upstream_rate_limited"


class UpstreamFailing(BackendUnavailable):
    """An upstream says that it takes nothing, and not why or for how long."""


class UpstreamRefused(BackendError):
    """An upstream does not serve this gateway: its operator's business, and no sign of ill health."""

    reason = "upstream_refused"
    retryable = False


class UpstreamUnauthorized(UpstreamRefused):
    """It wants other credentials than the gateway's."""


class UpstreamForbidden(UpstreamRefused):
    """The gateway's credentials do not allow it."""


class UpstreamNotFound(UpstreamRefused):
    """It has nothing at this path."""


class BackendCrashed(BackendError):
    """The engine died with the request inside; the request may be the cause, so no retry by us."""

    reason = "backend_crashed"


class BackendProtocolError(BackendError):
    """The engine answered something that is not the protocol it claims to speak."""

    reason = "backend_protocol_error"


class NotAnEventStream(BackendProtocolError):
    """A page of markup or a bare JSON text, where events were expected."""


class ConfigError(LLMRuntimeError):
    """Start-up only. The message names the key, the value and the fix."""

    reason = "config_error"


def forget_frames(error: BaseException) -> None:
    """For who has dealt with it. A traceback keeps alive whatever the frames held that the error passed
    through, and something of that often holds the error: memory that only the collector could free."""
    chain: list[BaseException] = [error]
    while chain:
        each = chain.pop()
        if each.__traceback__ is not None:
            each.__traceback__ = None
            chain += [other for other in (each.__cause__, each.__context__) if other is not None]
