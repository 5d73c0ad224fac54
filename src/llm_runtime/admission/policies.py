"""The rate limit over all requests, in the process."""

from __future__ import annotations

import math

from llm_runtime.admission.base import Load, Reservation
from llm_runtime.admission.token_bucket import TokenBucket, VirtualTail
from llm_runtime.core.errors import RateLimited
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest


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
