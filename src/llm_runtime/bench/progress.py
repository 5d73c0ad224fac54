"""The line that tells how a run goes, on a terminal: cheap enough not to disturb it."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.live import Live
from rich.text import Text

from llm_runtime.bench.clock import now
from llm_runtime.bench.config import Plan, Replay
from llm_runtime.bench.driver import Driver

REFRESH_S = 0.5


class ProgressLine:
    """A `Watcher`. One line, drawn twice a second from counts that exist anyway."""

    def __init__(self, console: Console, title: str = "") -> None:
        self._console = console
        self._title = title

    async def watch(self, driver: Driver) -> None:
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            tokens, at = 0, now()
            while True:
                await asyncio.sleep(REFRESH_S)
                earlier, at = at, now()
                rate = (driver.ledger.num_tokens - tokens) / (at - earlier)
                tokens = driver.ledger.num_tokens
                live.update(Text(self._line(driver, at - driver.origin, rate)), refresh=True)

    def _line(self, driver: Driver, elapsed_s: float, tokens_per_s: float) -> str:
        ledger = driver.ledger
        waiting = f" ({driver.gate.num_waiting} wait here)" if driver.gate.num_waiting else ""
        parts = [
            f"{self._title}{_goal(driver.plan, elapsed_s)}",
            f"{ledger.num_completed} done",
            f"{ledger.num_failed} failed",
            f"{ledger.num_in_flight} in flight{waiting}",
            f"{tokens_per_s:,.0f} tok/s",
        ]
        if driver.load_end_s is not None:
            parts.append("draining")
        if ledger.last_error is not None:
            parts.append(f"last failure: {ledger.last_error}"[:80])
        return " | ".join(parts)


def _goal(plan: Plan, elapsed_s: float) -> str:
    limits = plan.limits
    if limits.duration_s is not None:
        return f"{elapsed_s:.0f} of {limits.duration_s:.0f} s"
    if limits.requests is not None:
        return f"{elapsed_s:.0f} s, {limits.requests} requests"
    return f"{elapsed_s:.0f} s{', replay' if isinstance(plan.load, Replay) else ''}"
