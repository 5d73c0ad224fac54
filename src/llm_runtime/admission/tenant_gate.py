"""The asynchronous part of the identity gate: the limits of the request's tenant."""

from __future__ import annotations

from llm_runtime.admission.config import TenantLimits
from llm_runtime.admission.tenant_limits import Hold, TenantLimiter
from llm_runtime.admission.tenants import Tenants
from llm_runtime.core.clock import Clock
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.core.standing import Standing

WRITES_NOTHING = frozenset({EndpointKind.EMBEDDINGS, EndpointKind.RERANK, EndpointKind.TOKENIZE})
"""Endpoints that generate no tokens, whatever cap the request has."""


class HeldLimits:
    """One request's hold, as a `Reservation`."""

    __slots__ = ("_clock", "_hold", "_limiter", "_limits")

    def __init__(self, limiter: TenantLimiter, clock: Clock, limits: TenantLimits, hold: Hold) -> None:
        self._limiter = limiter
        self._clock = clock
        self._limits = limits
        self._hold = hold

    @property
    def standing(self) -> Standing:
        return self._hold.standing

    def rollback(self) -> None:
        self._limiter.undo(self._hold, self._limits, self._clock.now())

    def settle(self, usage: Usage | None) -> None:
        used = 0 if usage is None else usage.prompt_tokens + usage.completion_tokens
        self._limiter.settle(self._hold, self._limits, used, self._clock.now())


class TenantGate:
    """Owned by the admission controller. With limits in this process it never suspends."""

    def __init__(self, tenants: Tenants, limiter: TenantLimiter, clock: Clock) -> None:
        self._tenants = tenants
        self._limiter = limiter
        self._clock = clock

    async def reserve(self, request: RuntimeRequest) -> HeldLimits | None:
        """None: its tenant has no limits. Raises RateLimited, and LimiterUnavailable."""
        limits = self._tenants.limits_of(request.tenant)
        if limits is None:
            return None
        cost = estimate(request)
        hold = await self._limiter.reserve(request.tenant, limits, cost, self._clock.now())
        return HeldLimits(self._limiter, self._clock, limits, hold)

    async def standing(self, tenant: str) -> Standing | None:
        """None: no limits, or nobody can know."""
        limits = self._tenants.limits_of(tenant)
        if limits is None:
            return None
        return await self._limiter.standing(tenant, limits, self._clock.now())


def estimate(request: RuntimeRequest) -> int:
    """The most tokens a request is expected to use: its prompt's estimate, and its cap for each sequence."""
    if request.kind in WRITES_NOTHING:
        return request.num_prompt_tokens
    return request.num_prompt_tokens + request.max_tokens * request.num_slots
