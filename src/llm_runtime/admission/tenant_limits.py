"""Limits of each tenant: what is asked and answered, and their keeping in this process.

A request reserves one request and its estimate of tokens (prompt and cap) and takes one place. When it has
ended, the difference between the estimate and the truth is given back, or charged as a debt.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Protocol

from llm_runtime.admission.config import TenantLimits
from llm_runtime.admission.drain_rate import DrainRate
from llm_runtime.admission.token_bucket import TokenBucket, VirtualTail
from llm_runtime.core.errors import (
    ConcurrencyLimited,
    NeverWithinLimit,
    RateLimited,
    RequestsLimited,
    TokensLimited,
)
from llm_runtime.core.standing import Places, Standing, Window

MINUTE_S = 60.0
MAX_SPREAD_S = 60.0
"""How far those who are refused together are spread, beyond the wait of the first."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What one request holds of its tenant's limits. id: unique among all processes that share them.

    by_itself: kept in this process, whatever else there is.
    """

    id: str
    tenant: str
    num_tokens: int
    standing: Standing
    by_itself: bool = True


class TenantLimiter(Protocol):
    """Keeps the limits of all tenants. Each hold ends once, by `settle` or `undo`; both return at once."""

    async def reserve(self, tenant: str, limits: TenantLimits, num_tokens: int, now: float) -> Hold:
        """Takes all that the request needs, or nothing. Raises RateLimited, and LimiterUnavailable where
        nobody can know."""
        ...

    def settle(self, hold: Hold, limits: TenantLimits, num_tokens: int, now: float) -> None:
        """The request has ended and has used so many tokens."""
        ...

    def undo(self, hold: Hold, limits: TenantLimits, now: float) -> None:
        """The request did not enter after all."""
        ...

    async def standing(self, tenant: str, limits: TenantLimits, now: float) -> Standing | None:
        """How the tenant stands, with nothing taken; None where nobody can know."""
        ...


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds until each limit would let the request in; 0: it does now. Infinite: never."""

    requests_s: float = 0.0
    tokens_s: float = 0.0
    places_s: float = 0.0

    @property
    def longest_s(self) -> float:
        return max(self.requests_s, self.tokens_s, self.places_s)


def interval_s(waits: Waits, limits: TenantLimits, num_tokens: int) -> float:
    """Time between two of several requests like this one, if they came as fast as they may."""
    longest_s = waits.longest_s
    if longest_s == waits.requests_s and limits.requests_per_minute is not None:
        return MINUTE_S / limits.requests_per_minute
    if longest_s == waits.tokens_s and limits.tokens_per_minute is not None:
        return MINUTE_S * num_tokens / limits.tokens_per_minute
    return waits.places_s


def refusal(waits: Waits, limits: TenantLimits, num_tokens: int, told_s: float) -> RateLimited:
    """The error of the limit that lasts longest. told_s: when the client is told to come back."""
    longest_s = waits.longest_s
    if longest_s == math.inf:
        return NeverWithinLimit(
            f"The request may use {num_tokens} tokens (prompt and cap), but the limit is "
            f"{limits.tokens_per_minute} tokens per minute: ask for fewer."
        )
    again = f"Try again in {told_s:.3f} s."
    if longest_s == waits.requests_s:
        text = f"Rate limit reached: {limits.requests_per_minute} requests per minute. {again}"
        return RequestsLimited(text, retry_after_s=told_s)
    if longest_s == waits.tokens_s:
        text = (
            f"Rate limit reached: {limits.tokens_per_minute} tokens per minute; the request may use "
            f"{num_tokens}. {again}"
        )
        return TokensLimited(text, retry_after_s=told_s)
    text = f"Rate limit reached: {limits.max_concurrent_requests} requests at once. {again}"
    return ConcurrencyLimited(text, retry_after_s=told_s)


def window(limit: int, level: float) -> Window:
    """level: of a bucket that holds a minute's worth; below 0 while a debt lasts."""
    # What rounding left of a whole token is a whole token.
    remaining = min(limit, max(0, math.floor(level + 1e-6)))
    return Window(limit, remaining, max(0.0, (limit - level) * MINUTE_S / limit))


def standing_of(
    limits: TenantLimits, *, requests: float | None, tokens: float | None, num_held: int
) -> Standing:
    """requests, tokens: levels of the buckets, None where there is no such limit."""
    rpm, tpm, places = limits.requests_per_minute, limits.tokens_per_minute, limits.max_concurrent_requests
    return Standing(
        requests=None if rpm is None or requests is None else window(rpm, requests),
        tokens=None if tpm is None or tokens is None else window(tpm, tokens),
        concurrency=None if places is None else Places(places, max(0, places - num_held)),
    )


class Ledger:
    """One tenant's limits in this process, as pure arithmetic: time is an argument.

    In any span of T seconds at most `limit * (1 + T / 60)` requests are let in. The same holds for the
    tokens that those requests use, plus what was reserved before the span and turned out not to be used.
    """

    __slots__ = ("_ends", "_limits", "_num_held", "_requests", "_tail", "_tokens")

    def __init__(self, limits: TenantLimits) -> None:
        self._limits = limits
        self._requests = _bucket(limits.requests_per_minute)
        self._tokens = _bucket(limits.tokens_per_minute)
        self._num_held = 0
        self._tail = VirtualTail(MAX_SPREAD_S)
        self._ends = DrainRate()

    def reserve(self, num_tokens: int, now: float) -> None:
        """Raises RateLimited, with the standing in it and nothing taken."""
        waits = self._waits(num_tokens, now)
        if waits.longest_s > 0:
            told_s = waits.longest_s
            if told_s < math.inf:
                told_s = self._tail.place(now, told_s, interval_s(waits, self._limits, num_tokens))
            error = refusal(waits, self._limits, num_tokens, told_s)
            error.standing = self.standing(now)
            raise error
        if self._requests is not None:
            self._requests.charge(1)
        if self._tokens is not None:
            self._tokens.charge(num_tokens)
        self._num_held += 1
        self._ends.observe(now, busy=self._full)

    def settle(self, reserved: int, used: int, now: float) -> None:
        self._leave(now)
        if self._tokens is not None:
            self._tokens.level(now)
            self._tokens.give_back(reserved - used)

    def undo(self, reserved: int, now: float) -> None:
        self.settle(reserved, 0, now)
        if self._requests is not None:
            self._requests.give_back(1)

    def standing(self, now: float) -> Standing:
        return standing_of(
            self._limits,
            requests=None if self._requests is None else self._requests.level(now),
            tokens=None if self._tokens is None else self._tokens.level(now),
            num_held=self._num_held,
        )

    @property
    def _full(self) -> bool:
        most = self._limits.max_concurrent_requests
        return most is not None and self._num_held >= most

    def _waits(self, num_tokens: int, now: float) -> Waits:
        return Waits(
            0.0 if self._requests is None else self._requests.wait_s(1, now),
            0.0 if self._tokens is None else self._tokens.wait_s(num_tokens, now),
            self._ends.interval_s(now) if self._full else 0.0,
        )

    def _leave(self, now: float) -> None:
        self._num_held -= 1
        self._ends.observe_finished(now, busy=self._full)


class LocalLimits:
    """Implements `TenantLimiter` in this process. Used on the loop's thread; never suspends."""

    def __init__(self) -> None:
        self._ledgers: dict[str, Ledger] = {}
        self._serial = itertools.count(1)

    async def reserve(self, tenant: str, limits: TenantLimits, num_tokens: int, now: float) -> Hold:
        ledger = self._of(tenant, limits)
        ledger.reserve(num_tokens, now)
        return Hold(str(next(self._serial)), tenant, num_tokens, ledger.standing(now))

    def settle(self, hold: Hold, limits: TenantLimits, num_tokens: int, now: float) -> None:
        self._of(hold.tenant, limits).settle(hold.num_tokens, num_tokens, now)

    def undo(self, hold: Hold, limits: TenantLimits, now: float) -> None:
        self._of(hold.tenant, limits).undo(hold.num_tokens, now)

    async def standing(self, tenant: str, limits: TenantLimits, now: float) -> Standing | None:
        return self._of(tenant, limits).standing(now)

    def _of(self, tenant: str, limits: TenantLimits) -> Ledger:
        ledger = self._ledgers.get(tenant)
        if ledger is None:
            ledger = self._ledgers[tenant] = Ledger(limits)
        return ledger


def _bucket(per_minute: int | None) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute / MINUTE_S, per_minute)
