"""Tenants' limits that several processes share, kept in Redis: exact, since each decision is one script.

A place that is held lapses unless its process keeps saying that it lives, so a process that was killed gives
its places back. While Redis is gone each process goes on by itself, or limited tenants are refused.
"""

from __future__ import annotations

import itertools
import os

import structlog

from llm_runtime.admission.config import RedisConfig, TenantLimits
from llm_runtime.admission.drain_rate import DrainRates
from llm_runtime.admission.redis_link import Command, LinkLost, NotAsked, RedisLink, Script
from llm_runtime.admission.tenant_limits import (
    MAX_SPREAD_S,
    Hold,
    LocalLimits,
    Waits,
    refusal,
    standing_of,
)
from llm_runtime.core.errors import LimiterUnavailable
from llm_runtime.core.standing import Standing

log = structlog.get_logger(__name__)

BEATS_PER_LEASE = 3
RETRY_AFTER_S = 1.0

RESERVE = Script.of("reserve")
SETTLE = Script.of("settle")
REFRESH = Script.of("refresh")


class RedisLimits:
    """Implements `TenantLimiter`. Used on the loop's thread; `run` is its one task.

    Waits for a place of `max_concurrent_requests` are estimated from how fast requests end in this process.
    """

    def __init__(self, config: RedisConfig) -> None:
        assert config.url is not None
        self._prefix = config.key_prefix
        self._lease_s = config.lease_s
        self._when_gone = config.when_gone
        self._alone = LocalLimits()
        self._ends = DrainRates()
        self._held: dict[str, set[str]] = {}
        self._process = os.urandom(8).hex()
        self._serial = itertools.count(1)
        self._link = RedisLink(
            config.url,
            (RESERVE, SETTLE, REFRESH),
            timeout_s=config.timeout_ms / 1000,
            beat_s=config.lease_s / BEATS_PER_LEASE,
            on_beat=self._refresh,
            on_change=self._changed,
            probe_key=f"{config.key_prefix}:probe",
        )

    @property
    def shared(self) -> bool:
        """Whether Redis answers, so that the limits hold for all processes together."""
        return self._link.available

    async def run(self) -> None:
        """Until cancelled. Never returns for want of Redis."""
        await self._link.run()

    # ---- the seam

    async def reserve(self, tenant: str, limits: TenantLimits, num_tokens: int, now: float) -> Hold:
        hold_id = f"{self._process}:{next(self._serial)}"
        try:
            reply = await self._ask(tenant, limits, num_tokens, hold_id, now)
        except NotAsked:
            return await self._by_itself(tenant, limits, num_tokens, now)
        except LinkLost:
            self._undo(hold_id, tenant, limits, num_tokens)
            return await self._by_itself(tenant, limits, num_tokens, now)
        except BaseException:
            self._undo(hold_id, tenant, limits, num_tokens)
            raise
        waits, told_s, standing = reply
        if waits.longest_s > 0:
            error = refusal(waits, limits, num_tokens, told_s)
            error.standing = standing
            raise error
        self._held.setdefault(tenant, set()).add(hold_id)
        return Hold(hold_id, tenant, num_tokens, standing, by_itself=False)

    def settle(self, hold: Hold, limits: TenantLimits, num_tokens: int, now: float) -> None:
        if hold.by_itself:
            self._alone.settle(hold, limits, num_tokens, now)
        else:
            self._end(hold.tenant, hold.id, now)
            self._tell_end(hold.id, hold.tenant, limits, hold.num_tokens, num_tokens, 0)

    def undo(self, hold: Hold, limits: TenantLimits, now: float) -> None:
        if hold.by_itself:
            self._alone.undo(hold, limits, now)
        else:
            self._end(hold.tenant, hold.id, now)
            self._undo(hold.id, hold.tenant, limits, hold.num_tokens)

    async def standing(self, tenant: str, limits: TenantLimits, now: float) -> Standing | None:
        try:
            _, _, standing = await self._ask(tenant, limits, 0, "", now)
        except LinkLost:
            return await self._alone.standing(tenant, limits, now) if self._when_gone == "open" else None
        return standing

    # ---- parts

    async def _ask(
        self, tenant: str, limits: TenantLimits, num_tokens: int, hold_id: str, now: float
    ) -> tuple[Waits, float, Standing]:
        gap_s = self._ends.interval_s(tenant, now)
        asked = (*_numbers(limits), num_tokens, hold_id, self._lease_s, gap_s, MAX_SPREAD_S)
        *seconds, requests, tokens, num_held = await self._link.ask(RESERVE, self._keys(tenant), asked)
        requests_s, tokens_s, places_s, told_s = map(float, seconds)
        most = limits.max_concurrent_requests
        self._ends.observe(tenant, now, busy=most is not None and num_held >= most)
        standing = standing_of(limits, requests=float(requests), tokens=float(tokens), num_held=num_held)
        return Waits(requests_s, tokens_s, places_s), told_s, standing

    async def _by_itself(self, tenant: str, limits: TenantLimits, num_tokens: int, now: float) -> Hold:
        if self._when_gone == "closed":
            raise LimiterUnavailable(
                "The limits of this key cannot be checked at the moment.", retry_after_s=RETRY_AFTER_S
            )
        return await self._alone.reserve(tenant, limits, num_tokens, now)

    def _end(self, tenant: str, hold_id: str, now: float) -> None:
        self._held[tenant].discard(hold_id)
        self._ends.observe_finished(tenant, now, busy=False)

    def _undo(self, hold_id: str, tenant: str, limits: TenantLimits, reserved: int) -> None:
        self._tell_end(hold_id, tenant, limits, reserved, 0, 1)

    def _tell_end(
        self, hold_id: str, tenant: str, limits: TenantLimits, reserved: int, used: int, requests_back: int
    ) -> None:
        rpm, tpm, _ = _numbers(limits)
        self._link.tell(SETTLE, self._keys(tenant), (rpm, tpm, hold_id, reserved, used, requests_back))

    def _refresh(self) -> list[Command]:
        return [
            Command(REFRESH, self._keys(tenant), (self._lease_s, *held))
            for tenant, held in self._held.items()
            if held
        ]

    def _keys(self, tenant: str) -> tuple[str, str]:
        # What stands in braces decides on which node of a cluster the keys are: both on the same.
        tagged = f"{self._prefix}:{{{tenant}}}"
        return f"{tagged}:limits", f"{tagged}:holds"

    def _changed(self, why_gone: str | None) -> None:
        if why_gone is None:
            log.info("tenant_limits.redis_back")
        else:
            log.warning("tenant_limits.redis_gone", reason=why_gone, when_gone=self._when_gone)


def _numbers(limits: TenantLimits) -> tuple[int, int, int]:
    """As the scripts take them; 0: there is no such limit."""
    return (
        limits.requests_per_minute or 0,
        limits.tokens_per_minute or 0,
        limits.max_concurrent_requests or 0,
    )
