"""Notices an engine that is alive and does nothing: what no health answer tells.

It looks at the engine's progress (a token, prefill progress, a counter of its own that moved) while
it holds work, never at one request: a silent request beside moving ones is that request's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.lease import Lease

PROBE_TIMEOUT_S = 5.0
PREFILL_MARGIN = 3.0
INITIAL_PREFILL_TOKENS_PER_S = 100.0
RATE_WEIGHT = 0.3
PROBE_SHARE = 0.25
"""Of the limit: how far apart the two looks at the engine's counter are."""


class WorkLedger:
    """The leases one life of an engine holds, and when it was last seen to do something.

    Owned by that life; used from the loop. `changed` is set when the first lease comes.
    """

    def __init__(self) -> None:
        self.progressed_at: float | None = None
        self.changed = asyncio.Event()
        self._open: dict[Lease, int] = {}
        self._busy_since = 0.0
        self._prefill_tokens_per_s = INITIAL_PREFILL_TOKENS_PER_S

    def opened(self, lease: Lease, num_prompt_tokens: int, now: float) -> None:
        if not self.busy:
            self._busy_since = now
        self._open[lease] = num_prompt_tokens
        self.changed.set()

    def first_token(self, num_prompt_tokens: int, prefill_s: float) -> None:
        """Teaches how fast the engine reads prompts; of prompts long enough to tell."""
        if prefill_s > 0 and num_prompt_tokens >= 16:
            rate = num_prompt_tokens / prefill_s
            self._prefill_tokens_per_s += RATE_WEIGHT * (rate - self._prefill_tokens_per_s)

    @property
    def busy(self) -> bool:
        """Whether the engine holds work. A lease that was freed is forgotten here."""
        self._open = {lease: tokens for lease, tokens in self._open.items() if lease.held}
        return bool(self._open)

    @property
    def quiet_since(self) -> float:
        """Since when an engine that is busy has shown no progress."""
        return max(self._busy_since, self.progressed_at or 0.0)

    def patience_s(self, limit_s: float) -> float:
        """max(limit, 3 x the predicted prefill of all it holds): engines read prompts in turns."""
        predicted_s = sum(self._open.values()) / self._prefill_tokens_per_s
        return max(limit_s, PREFILL_MARGIN * predicted_s)


class Watched(Protocol):
    """A life of an engine, as its watchdog sees it."""

    ledger: WorkLedger

    async def work_done(self) -> float | None:
        """A counter of the engine's own that grows with its work; None if it did not say. May take
        long or raise: the watchdog bounds it."""
        ...


async def watch(
    life: Watched, limit_s: float, stuck: Callable[[str], None], now: Callable[[], float]
) -> None:
    """Until cancelled, or once `stuck` was called with the reason. Sleeps while nothing is due."""
    ledger = life.ledger
    while True:
        if not ledger.busy:
            ledger.changed.clear()
            await ledger.changed.wait()
            continue
        wait_s = ledger.quiet_since + ledger.patience_s(limit_s) - now()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
            continue
        quiet_since = ledger.quiet_since
        reason = await _probe(life, limit_s * PROBE_SHARE)
        if ledger.quiet_since > quiet_since or not ledger.busy:
            continue  # it moved while it was being asked
        if reason is not None:
            stuck(reason)
            return
        ledger.progressed_at = now()


async def _probe(life: Watched, gap_s: float) -> str | None:
    """Asks the engine's own counter twice. Why it is stuck, None if the counter moved."""
    before = await _work_done(life)
    if before is None:
        return "it made no progress and did not answer when asked"
    await asyncio.sleep(gap_s)
    after = await _work_done(life)
    if after is None:
        return "it made no progress and stopped answering"
    return None if after > before else "it answers, but makes no progress on the work it holds"


async def _work_done(life: Watched) -> float | None:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await life.work_done()
    except (TimeoutError, LLMRuntimeError):
        return None
