"""What the end of one attempt says of the replica that made it, and whether another may try. Pure."""

from __future__ import annotations

from llm_runtime.core.errors import (
    BackendCrashed,
    BackendError,
    BackendUnavailable,
    LLMRuntimeError,
    UpstreamFailing,
    UpstreamRefused,
)
from llm_runtime.core.word import Word


class Verdict(Word):
    """Words of the metric as well.

    ANSWERED: in full. REFUSED: by the request's own fault or the operator's. BUSY: it takes nothing at
    the moment and says when. FAILED: by its own fault. LEFT: nobody waited for the end.
    """

    ANSWERED = "answered"
    REFUSED = "refused"
    BUSY = "busy"
    FAILED = "failed"
    LEFT = "left"


def verdict_of(error: LLMRuntimeError) -> Verdict:
    """Of what an engine's stream raised."""
    if not isinstance(error, BackendError) or isinstance(error, UpstreamRefused):
        return Verdict.REFUSED
    if isinstance(error, BackendUnavailable) and error.retry_after_s is not None:
        return Verdict.BUSY
    return Verdict.FAILED


def may_try_here(error: LLMRuntimeError) -> bool:
    """Whether the same replica may be tried again at once: nobody took the request, and nobody said why."""
    return (
        isinstance(error, BackendUnavailable)
        and not isinstance(error, UpstreamFailing)
        and error.retry_after_s is None
    )


def may_try_elsewhere(error: LLMRuntimeError, *, unanswered: bool) -> bool:
    """Whether another replica may be given the request. unanswered: also where the engine that had it may
    have begun to compute. Never after a crash: the request may be its cause."""
    if not isinstance(error, BackendError) or isinstance(error, BackendCrashed | UpstreamRefused):
        return False
    return unanswered or isinstance(error, BackendUnavailable)
