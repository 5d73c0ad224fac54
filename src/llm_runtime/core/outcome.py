"""How a request ended, once and for all, and what it used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.core.timeline import Timeline
from llm_runtime.core.word import Word


class Outcome(Word):
    COMPLETED = "completed"
    REJECTED = "rejected"
    EVICTED = "evicted"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    FAILED = "failed"


@final
@dataclass(init=False, slots=True, unsafe_hash=True)
class Usage:
    """Token counts as the engine reported them, summed over choices.

    estimated: the engine did not say; the counts are ours and marked so in metrics.
    """

    prompt_tokens: Final[int]
    completion_tokens: Final[int]
    cached_tokens: Final[int]
    estimated: Final[bool]

    def __init__(
        self,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cached_tokens: int = 0,
        estimated: bool = False,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens
        self.estimated = estimated


@final
@dataclass(init=False, slots=True, unsafe_hash=True)
class RequestRecord:
    """Everything telemetry needs of a request that has ended.

    reason: finish reason of a completed request, else the error's `reason`.
    itl_counts: how many gaps between wake-ups that brought tokens fell in each bucket of
        `timeline.ITL_BUCKETS_S` (one more entry than edges: the last is +Inf); None if unmeasured.
    """

    request: Final[RuntimeRequest]
    outcome: Final[Outcome]
    reason: Final[str]
    usage: Final[Usage]
    timeline: Final[Timeline]
    replica: Final[str | None]
    itl_counts: Final[tuple[int, ...] | None]
    itl_sum_s: Final[float]

    def __init__(
        self,
        request: RuntimeRequest,
        outcome: Outcome,
        reason: str,
        usage: Usage,
        timeline: Timeline,
        replica: str | None = None,
        itl_counts: tuple[int, ...] | None = None,
        itl_sum_s: float = 0.0,
    ) -> None:
        self.request = request
        self.outcome = outcome
        self.reason = reason
        self.usage = usage
        self.timeline = timeline
        self.replica = replica
        self.itl_counts = itl_counts
        self.itl_sum_s = itl_sum_s
