"""Sessions that are known one by one, sent to a server at their instants: what scenarios made of single
requests need, where no rate and no mixture describes them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from llm_runtime.bench import metrics
from llm_runtime.bench.bodies import BodyWriter
from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.clock import quiet_collector
from llm_runtime.bench.config import Limits, Plan, Replay, Target, TraceFile
from llm_runtime.bench.driver import Driver
from llm_runtime.bench.prompts import PromptWriter
from llm_runtime.bench.records import RequestRecord
from llm_runtime.bench.stats import supports
from llm_runtime.bench.verdict import MAX_LAG_S
from llm_runtime.bench.workload import Session
from llm_runtime.core.errors import BackendError


class GivenSessions:
    """Implements `SessionSource`. Sessions bear the numbers of their places and have `due_s`."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        for number, session in enumerate(sessions):
            if session.number != number or session.due_s is None:
                raise ValueError(f"session {number} must bear its number and an instant")
        self._sessions = sessions

    def session(self, number: int) -> Session | None:
        return self._sessions[number] if number < len(self._sessions) else None


def given_plan(target: Target, sessions: Sequence[Session], drain_timeout_s: float = 120.0) -> Plan:
    """A plan whose load is these sessions; with `GivenSessions` for a driver or a simulated feed."""
    classes = {session.traffic.name: session.traffic for session in sessions}
    limits = Limits(warmup_requests=0, drain_timeout_s=drain_timeout_s)
    return Plan(target, Replay(TraceFile("given")), tuple(classes.values()), limits)


async def play(plan: Plan, sessions: Sequence[Session]) -> list[RequestRecord]:
    """Sends them once, without a warm-up. plan: of `given_plan`. The records are in order of number;
    whether the client was late is for `lag_s` to tell."""
    async with LoadClient(plan.target) as client:
        model = plan.target.model or await client.first_model()
        bodies = BodyWriter(plan.target, model, PromptWriter(secrets.token_hex(8), plan.tokens_per_word))
        driver = Driver(plan, client, bodies, GivenSessions(sessions))
        with quiet_collector():
            await driver.run()
    return sorted(driver.ledger.records, key=lambda record: record.number)


async def play_on_time(
    plan: Plan, sessions: Sequence[Session], *, tries: int = 3, limit_s: float = MAX_LAG_S
) -> list[RequestRecord]:
    """As `play`, again while the client itself was late, which voids whatever was measured.

    Raises BackendError when it was late every time.
    """
    for _ in range(tries):
        records = await play(plan, sessions)
        late_s = lag_s(records)
        if late_s <= limit_s:
            return records
    raise BackendError(f"void: the client was {1e3 * late_s:.1f} ms late, {tries} times in a row")


def lag_s(records: Sequence[RequestRecord]) -> float:
    """How late requests were sent: the p99, or the median of a sample too small for one."""
    lags = sorted(metrics.values(records, metrics.schedule_lag_s))
    share = 0.99 if supports(99, len(lags)) else 0.5
    return lags[int(share * (len(lags) - 1))] if lags else 0.0
