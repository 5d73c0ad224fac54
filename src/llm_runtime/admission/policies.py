"""The policies in the process: a rate limit over requests and a cap on the queue."""

from __future__ import annotations

import math

from llm_runtime.admission.base import Load, Reservation
from llm_runtime.admission.drain_rate import DrainRates
from llm_runtime.admission.token_bucket import TokenBucket, VirtualTail
from llm_runtime.core.errors import QueueFull, RateLimited
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest

MAX_RETRY_AFTER_S = 60.0


class _TakenToken:
    """One request's token. Spent whatever becomes of the request, unless another policy refuses it."""

    __slots__ = ("_bucket",)

    def __init__(self, bucket: TokenBucket) -> None:
        self._bucket = bucket

    def rollback(self) -> None:
        self._bucket.give_back(1)

    def settle(self, usage: Usage | None) -> None:
        """A request counts as one, whatever it used."""


class RateLimit:
    """At most `rate_per_s` requests a second in the long run and `burst` at once, in this process.

    burst None: one second's worth, at least 1. A refusal says exactly when a token will be there for
    this client: those refused together get places one after another (see `VirtualTail`).
    """

    name = "rate_limit"

    __slots__ = ("_bucket", "_tail")

    def __init__(self, rate_per_s: float, burst: int | None = None) -> None:
        self._bucket = TokenBucket(rate_per_s, burst if burst is not None else max(1, math.floor(rate_per_s)))
        self._tail = VirtualTail()

    def reserve(self, request: RuntimeRequest, load: Load, now: float) -> Reservation:
        """Raises RateLimited."""
        bucket = self._bucket
        wait_s = bucket.try_take(1, now)
        if wait_s > 0:
            raise RateLimited(
                f"Request rate limit reached: {bucket.rate_per_s:g} per second, {bucket.burst:g} at once.",
                retry_after_s=self._tail.place(now, wait_s, 1 / bucket.rate_per_s),
            )
        return _TakenToken(bucket)


class QueueCap:
    """At most `max_queue_size` requests wait in a pool; what need not wait is never refused.

    A refusal tells when a place is likely to be free, from how fast requests have lately left while
    others were waiting; 1 s before anything is known. The runtime reports each end of a request by
    `observe_finished`.
    """

    name = "queue_cap"

    __slots__ = ("_drain", "_max_queue_size", "_tails")

    def __init__(self, max_queue_size: int) -> None:
        if max_queue_size < 0:
            raise ValueError(f"max_queue_size must not be negative, not {max_queue_size}")
        self._max_queue_size = max_queue_size
        self._drain = DrainRates()
        self._tails: dict[str, VirtualTail] = {}

    def reserve(self, request: RuntimeRequest, load: Load, now: float) -> None:
        """Raises QueueFull."""
        model = request.model
        self._drain.observe(model, now, busy=load.would_wait)
        if not load.would_wait or load.num_waiting < self._max_queue_size:
            return
        interval_s = min(self._drain.interval_s(model, now), MAX_RETRY_AFTER_S)
        tail = self._tails.get(model)
        if tail is None:
            tail = self._tails[model] = VirtualTail()
        raise QueueFull(
            f"The queue is full: {load.num_waiting} requests are waiting.",
            retry_after_s=min(tail.place(now, interval_s, interval_s), MAX_RETRY_AFTER_S),
        )

    def observe_finished(self, model: str, now: float, num_waiting: int) -> None:
        """A request of that model's pool has ended, in whatever way; so many still wait there."""
        self._drain.observe_finished(model, now, busy=num_waiting > 0)
