"""Does the harness measure what happened? Against a stub whose every instant is known beforehand.

The role chunk comes at once and a comment later, long before the first token, so a clock stopped by
either would be off by half or more. Under the cap the client itself is the queue: the truth then
follows from the schedule alone, by the recursion of a queue with that many servers.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_runtime.bench import metrics
from llm_runtime.bench.config import ClosedLoop, Limits, Load, OpenLoop, Plan, Target, TrafficClass
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.records import RequestRecord
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.stub_process import stub_process
from llm_runtime.bench.stub_script import Script
from llm_runtime.bench.summary import summarise

TOKENS = 11
SCRIPT = Script(role_at_s=0.01, role_content="empty", ping_at_s=0.1, first_at_s=0.2, gap_s=0.02)
SERVICE_S = SCRIPT.end_s(TOKENS)
TOLERANCE = 0.02
MAX_VOIDS = 2
NOT_KEPT = ("environment", "server", "samples")
KINDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
}


@dataclass(frozen=True, slots=True)
class Case:
    """quick_requests: enough for means and medians; requests: enough for a p99 too."""

    load: Load
    quick_requests: int
    requests: int


CASES: Mapping[str, Case] = {
    "closed_8": Case(ClosedLoop(8), 64, 1000),
    "closed_64": Case(ClosedLoop(64), 384, 3000),
    "open_constant_1000": Case(OpenLoop(1000, "constant"), 4000, 20000),
    "open_poisson_300": Case(OpenLoop(300, "poisson"), 1200, 6000),
    "open_capped": Case(OpenLoop(400, "constant", max_in_flight=100), 1200, 4000),
}


def queue_waits(due: Sequence[float], service_s: float, places: int | None) -> list[float]:
    """Seconds each request waits for a place, first come first served; pure. due: ascending."""
    if places is None:
        return [0.0] * len(due)
    free_at = [0.0] * places
    waits = []
    for instant in due:
        start = max(instant, heapq.heappop(free_at))
        heapq.heappush(free_at, start + service_s)
        waits.append(start - instant)
    return waits


def errors(records: Sequence[RequestRecord], places: int | None) -> dict[str, float]:
    """Relative error of the mean and of the median of each latency, by name. records: as due."""
    waits = queue_waits([record.scheduled_at for record in records], SERVICE_S, places)
    truth = {
        "ttft": [wait + SCRIPT.first_at_s for wait in waits],
        "e2e": [wait + SERVICE_S for wait in waits],
        "itl": [SCRIPT.gap_s],
    }
    seen = {
        "ttft": metrics.values(records, metrics.ttft_s),
        "e2e": metrics.values(records, metrics.e2e_s),
        "itl": [gap for record in records for gap in metrics.itls_s(record)],
    }
    return {
        f"{kind}_{name}": of(seen[name]) / of(truth[name]) - 1 for kind, of in KINDS.items() for name in truth
    }


async def measure(quick: bool) -> Result:
    details: dict[str, Any] = {}
    async with stub_process(SCRIPT) as url:
        for name, case in CASES.items():
            details[name] = await _case(url, case, case.quick_requests if quick else case.requests)
    figures: dict[str, float | None] = {
        f"worst_{key}_error": max(
            abs(found["errors"][f"{kind}_{key}"]) for found in details.values() for kind in KINDS
        )
        for key in ("ttft", "itl", "e2e")
    }
    clients = [found["summary"]["client"] for found in details.values()]
    figures["worst_schedule_lag_p99_ms"] = max(1e3 * client["schedule_lag_p99_s"] for client in clients)
    figures["failed"] = sum(found["summary"]["failed"] for found in details.values())
    return Result(figures, details)


async def _case(url: str, case: Case, num_requests: int) -> dict[str, Any]:
    """One load, again while the run is void: the machine, not the harness, was too busy then."""
    traffic = TrafficClass(input_tokens=Fixed(32), output_tokens=Fixed(TOKENS))
    plan = Plan(Target(url), case.load, (traffic,), Limits(requests=num_requests))
    voids: list[Any] = []
    while True:
        result = await run(plan)
        summary = summarise(result)
        if summary["verdict"]["state"] != "void" or len(voids) == MAX_VOIDS:
            break
        voids.append(summary["verdict"]["reasons"])
    records = metrics.completed(metrics.measured(result.records))
    places = None if isinstance(case.load, ClosedLoop) else case.load.max_in_flight
    kept = {key: value for key, value in summary.items() if key not in NOT_KEPT}
    return {
        "errors": errors(records, places),
        "mean_e2el_ms_from_send": _blind_ms(records),
        "void_runs": voids,
        "summary": kept,
    }


def _blind_ms(records: Sequence[RequestRecord]) -> float:
    """The mean E2E of a clock started at sending, which does not see the client's own queue."""
    spans = [r.finished_at - r.started_at for r in records if r.finished_at and r.started_at is not None]
    return 1e3 * statistics.fmean(spans)


SCENARIO = Scenario(
    name="honesty",
    question="Are TTFT, ITL and E2E within 2 % of the truth, in closed and open loop, under a client cap, "
    "and at 1,000 requests per second?",
    workload={"script": SCRIPT, "output_tokens": TOKENS, "cases": CASES},
    bars=(
        Bar("worst_ttft_error", "<=", TOLERANCE),
        Bar("worst_itl_error", "<=", TOLERANCE),
        Bar("worst_e2e_error", "<=", TOLERANCE),
        Bar("worst_schedule_lag_p99_ms", "<=", 5.0),
        Bar("failed", "<=", 0.0),
    ),
    run=measure,
)
