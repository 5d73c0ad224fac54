"""What ends a request means: limits of time as errors, errors as outcomes."""

from __future__ import annotations

import asyncio

from llm_runtime.core.errors import (
    ClientGone,
    DeadlineExceeded,
    Draining,
    Evicted,
    LLMRuntimeError,
    QueueTimeout,
)
from llm_runtime.core.outcome import Outcome
from llm_runtime.runtime.pace import Due

SERVER_STOPPED = "server_stopped"
RETRY_AFTER_TIMEOUT_S = 1.0


def ending(error: BaseException) -> tuple[Outcome, str]:
    """How an accepted request that ended with `error` is counted, and the reason beside it."""
    if isinstance(error, ClientGone):
        return Outcome.CANCELLED, error.reason
    if isinstance(error, Draining | asyncio.CancelledError):
        return Outcome.CANCELLED, SERVER_STOPPED
    if isinstance(error, Evicted):
        return Outcome.EVICTED, error.reason
    if isinstance(error, DeadlineExceeded):
        return Outcome.TIMED_OUT, error.reason
    if isinstance(error, LLMRuntimeError):
        return Outcome.FAILED, error.reason
    return Outcome.FAILED, "internal_error"


def overdue(what: Due, *, dispatched: bool) -> LLMRuntimeError:
    """The error for a limit that has passed."""
    if what is Due.WRITE_STALL:
        return ClientGone("The client does not read.", reason="slow_client")
    if dispatched:
        return DeadlineExceeded(f"The {what.value} passed before the answer was complete.")
    message = f"The {what.value} passed while the request was waiting in the queue."
    return QueueTimeout(message, retry_after_s=RETRY_AFTER_TIMEOUT_S)
