"""Notices an engine that is alive and does nothing: what no health answer tells.

It looks at the engine's progress (a token, prefill progress, a counter of its own that moved) while
it holds work, never at one request: a silent request beside moving ones is that request's affair.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.lease import Lease
from llm_runtime.engines.base import SignsOfLife

PROBE_TIMEOUT_S = 5.0
"""At most, for an answer after the limit."""
PREFILL_MARGIN = 3.0
INITIAL_PREFILL_TOKENS_PER_S = 100.0
RATE_WEIGHT = 0.3
MAX_REMEMBERED = 256  # prompts; more than engines read at once
PROBE_SHARE = 0.25
"""The last part of the limit: in it the engine is asked, so that the verdict does not come later."""


@dataclass(slots=True)
class _Prompt:
    """num_tokens: estimated. first_token_at: None while the engine reads it."""

    num_tokens: int
    opened_at: float
    first_token_at: float | None = None


class WorkLedger:
    """The leases one life of an engine holds, and when it was last seen to do something.

    Owned by that life; used from the loop. `changed` is set when the first lease comes.
    """

    def __init__(self) -> None:
        self.signs = SignsOfLife()
        self.changed = asyncio.Event()
        self._open: dict[Lease, _Prompt] = {}
        self._read: deque[_Prompt] = deque(maxlen=MAX_REMEMBERED)
        self._busy_since = 0.0
        self._prefill_tokens_per_s = INITIAL_PREFILL_TOKENS_PER_S

    def opened(self, lease: Lease, num_prompt_tokens: int, now: float) -> None:
        if not self.busy:
            self._busy_since = now
        self._open[lease] = _Prompt(num_prompt_tokens, now)
        self.changed.set()

    def first_token(self, lease: Lease, now: float, *, whole: bool) -> None:
        """Its prompt is read: it needs no more patience, and teaches how fast the engine reads if it is
        long enough to tell. whole: the answer came in one piece, which teaches nothing."""
        prompt = self._open.get(lease)
        if prompt is None or prompt.first_token_at is not None:
            return
        prompt.first_token_at = now
        self._read.append(prompt)
        prefill_s = now - prompt.opened_at
        if prefill_s > 0 and prompt.num_tokens >= 16 and not whole:
            rate = self._num_read_since(prompt.opened_at) / prefill_s
            self._prefill_tokens_per_s += RATE_WEIGHT * (rate - self._prefill_tokens_per_s)

    def _num_read_since(self, instant: float) -> int:
        """Tokens of all prompts: the engine reads several at once, and each waits for the others."""
        return sum(each.num_tokens for each in self._read if (each.first_token_at or 0.0) > instant)

    @property
    def busy(self) -> bool:
        """Whether the engine holds work. A lease that was freed is forgotten here."""
        self._open = {lease: prompt for lease, prompt in self._open.items() if lease.held}
        return bool(self._open)

    @property
    def quiet_since(self) -> float:
        """Since when an engine that is busy has shown no progress."""
        return max(self._busy_since, self.signs.at)

    def patience_s(self, limit_s: float) -> float:
        """max(limit, 3 x the predicted prefill of all it has yet to read): engines read prompts in
        turns, and may show nothing meanwhile."""
        unread = sum(each.num_tokens for each in self._open.values() if each.first_token_at is None)
        return max(limit_s, PREFILL_MARGIN * unread / self._prefill_tokens_per_s)


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
    """Until cancelled, or once `stuck` was called with the reason. Sleeps while nothing is due.

    The engine is asked for its counter shortly before its time is over, and once more when it is: one
    that does not answer is stuck at the limit, not some time after it.
    """
    ledger = life.ledger
    while True:
        if not ledger.busy:
            ledger.changed.clear()
            await ledger.changed.wait()
            continue
        quiet_since, patience_s = ledger.quiet_since, ledger.patience_s(limit_s)
        due_s = quiet_since + patience_s - now()
        probe_s = patience_s * PROBE_SHARE
        if due_s > probe_s:
            await asyncio.sleep(due_s - probe_s)
            continue
        reason = await _probe(life, max(due_s, 0.0), min(probe_s, PROBE_TIMEOUT_S))
        if ledger.quiet_since > quiet_since or not ledger.busy:
            continue  # it moved while it was being asked
        if reason is not None:
            stuck(reason)
            return
        ledger.signs.at = now()


async def _probe(life: Watched, due_s: float, grace_s: float) -> str | None:
    """Asks the engine's own counter now and in due_s seconds. Why it is stuck, None if the counter moved.

    grace_s: for each answer; the first one also has until the second is asked for.
    """
    loop = asyncio.get_running_loop()
    due_at = loop.time() + due_s
    # Not due_s alone: after a pause of the whole machine nothing of it is left.
    before = await _work_done(life, max(due_s, grace_s))
    await asyncio.sleep(due_at - loop.time())
    if before is None:
        return "it made no progress and did not answer when asked"
    after = await _work_done(life, grace_s)
    if after is None:
        return "it made no progress and stopped answering"
    return None if after > before else "it answers, but makes no progress on the work it holds"


async def _work_done(life: Watched, timeout_s: float) -> float | None:
    try:
        async with asyncio.timeout(timeout_s):
            return await life.work_done()
    except (TimeoutError, LLMRuntimeError):
        return None
