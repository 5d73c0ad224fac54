"""The instants of one request, and the only definitions of the latencies made from them.

All instants are monotonic seconds. Definitions follow `vllm bench serve` where it has one:

    queue wait  dispatched - queued
    TTFT        first token - arrival   (queue wait included; the role chunk is not a token)
    TPOT        (last token - first token) / (completion tokens - 1); undefined below 2 tokens
    ITL         gap between two wake-ups that brought tokens
    E2E         last byte - arrival
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Final

ITL_BUCKETS_S: Final[tuple[float, ...]] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0, 60.0,
)  # fmt: skip

_NEVER: Final = -1e300
"""For an instant that every token moves: a number is written in place, while one or nothing is an object."""


class Timeline:
    """Mutable while the request lives; written only by the request's own task and the dispatcher."""

    __slots__ = (
        "_above_s",
        "_bucket",
        "_counts",
        "_last_at",
        "_num_alike",
        "_up_to_s",
        "arrived_at",
        "dispatched_at",
        "finished_at",
        "first_token_at",
        "itl_sum_s",
        "queued_at",
    )

    def __init__(self, arrived_at: float) -> None:
        # First what every token looks at: compiled, these lie side by side in memory, in this order.
        self.first_token_at: float | None = None
        self._last_at = _NEVER
        # Gaps are alike: that of the last one is mostly the bucket of the next, so they are counted in runs.
        self._above_s = self._up_to_s = 0.0
        self._num_alike = 0
        self.itl_sum_s = 0.0
        self._bucket = 0
        self._counts: list[int] | None = None
        self.arrived_at = arrived_at
        self.queued_at: float | None = None
        self.dispatched_at: float | None = None
        self.finished_at: float | None = None

    def token(self, now: float) -> None:
        """Notes that a wake-up brought at least one token."""
        last = self._last_at
        self._last_at = now
        if last == _NEVER:
            self.first_token_at = now
            return
        gap = now - last
        if not self._above_s < gap <= self._up_to_s:
            self._find_bucket(gap)
        self._num_alike += 1
        self.itl_sum_s += gap

    @property
    def last_token_at(self) -> float | None:
        last = self._last_at
        return None if last == _NEVER else last

    @last_token_at.setter
    def last_token_at(self, at: float | None) -> None:
        self._last_at = _NEVER if at is None else at

    @property
    def itl_counts(self) -> list[int] | None:
        """How many gaps fell in each bucket of ITL_BUCKETS_S and above the last; None without any."""
        self._count()
        return self._counts

    def _count(self) -> None:
        if self._num_alike:
            if self._counts is None:
                self._counts = [0] * (len(ITL_BUCKETS_S) + 1)
            self._counts[self._bucket] += self._num_alike
            self._num_alike = 0

    def _find_bucket(self, gap: float) -> None:
        self._count()
        self._bucket = bucket = bisect_left(ITL_BUCKETS_S, gap)
        self._above_s = ITL_BUCKETS_S[bucket - 1] if bucket else -math.inf
        self._up_to_s = ITL_BUCKETS_S[bucket] if bucket < len(ITL_BUCKETS_S) else math.inf

    @property
    def queue_wait_s(self) -> float | None:
        start, end = self.queued_at, self.dispatched_at
        return None if start is None or end is None else end - start

    @property
    def ttft_s(self) -> float | None:
        end = self.first_token_at
        return None if end is None else end - self.arrived_at

    @property
    def prefill_s(self) -> float | None:
        """Dispatch to first token: the engine's prefill and whatever the engine itself queued."""
        start, end = self.dispatched_at, self.first_token_at
        return None if start is None or end is None else end - start

    @property
    def decode_s(self) -> float | None:
        start, end = self.first_token_at, self.last_token_at
        return None if start is None or end is None else end - start

    @property
    def e2e_s(self) -> float | None:
        end = self.finished_at
        return None if end is None else end - self.arrived_at

    def tpot_s(self, num_completion_tokens: int) -> float | None:
        start, end = self.first_token_at, self.last_token_at
        if start is None or end is None or num_completion_tokens < 2:
            return None
        return (end - start) / (num_completion_tokens - 1)
