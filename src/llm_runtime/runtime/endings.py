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
from llm_runtime.core.outcome import Outcome, RequestRecord, Usage
from llm_runtime.runtime.pace import Due

SERVER_STOPPED = "server_stopped"


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


def charged(record: RequestRecord) -> Usage | None:
    """What an ended request counts against the limits of its tenant; None: nothing was computed.

    Who leaves while an engine is at the prompt has had it worked on, although the engine has not said how
    many tokens it was: then the estimate counts. What an engine failed before its first token is free.
    """
    usage = record.usage
    if record.outcome is Outcome.COMPLETED or usage.completion_tokens > 0:
        return usage
    if record.outcome not in (Outcome.CANCELLED, Outcome.TIMED_OUT) or record.timeline.dispatched_at is None:
        return None
    if usage.prompt_tokens > 0:
        return usage
    return Usage(prompt_tokens=record.request.num_prompt_tokens, estimated=True)


def overdue(what: Due, return_s: float | None) -> LLMRuntimeError:
    """The error for a limit that has passed. return_s: when a request that was still waiting may come again;
    None: it was dispatched."""
    if what is Due.WRITE_STALL:
        return ClientGone("The client does not read.", reason="slow_client")
    if return_s is None:
        return DeadlineExceeded(f"The {what.value} passed before the answer was complete.")
    message = f"The {what.value} passed while the request was waiting in the queue."
    return QueueTimeout(message, retry_after_s=return_s)
