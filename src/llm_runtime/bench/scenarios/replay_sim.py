"""Recorded loads, unscaled, through simulated fleets: does the simulator carry hundreds of replicas and
hundreds of thousands of requests in minutes, and what does the runtime's own core do with them?

The engine is a model of a server GPU with an 8-billion-parameter model: rounded figures, the same for all.
The claim is about the simulator's speed and about the shape of the load, not about any GPU.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from llm_runtime.bench import stats
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.sim.config import ContinuousModel, SimConfig, fleet
from llm_runtime.bench.sim.curve import line
from llm_runtime.bench.sim.feed import OpenFeed
from llm_runtime.bench.sim.policies import scheduled
from llm_runtime.bench.sim.replay import copies
from llm_runtime.bench.sim.result import SimResult
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.bench.trace_data import entries_of
from llm_runtime.scheduling.config import SchedulingConfig

GPU = ContinuousModel(
    num_slots=64,
    step_s=line(0.0120, 0.00012),
    prefill_s_per_token=0.0001,
    batch_tokens=2048,
    cache_tokens=400_000,
)


@dataclass(frozen=True, slots=True)
class Case:
    """copies: of the trace, each a service of its own."""

    file: str
    copies: int
    replicas: int


FULL: Mapping[str, Case] = {
    "azure_conv": Case("azure_llm_2023_conv.csv", 1, 2),
    "azure_code": Case("azure_llm_2023_code.csv", 1, 2),
    "mooncake_conversation": Case("mooncake_conversation.jsonl", 1, 8),
    "azure_conv_fleet": Case("azure_llm_2023_conv.csv", 20, 200),
    "mooncake_fleet": Case("mooncake_conversation.jsonl", 20, 160),
}
QUICK: Mapping[str, Case] = {
    **{name: case for name, case in FULL.items() if case.copies == 1},
    "azure_conv_fleet": Case("azure_llm_2023_conv.csv", 2, 200),
}


def replayed(case: Case) -> tuple[SimResult, float]:
    """The result and the seconds it took to compute."""
    config = SimConfig(fleet(case.replicas, GPU))
    feed = OpenFeed(copies(entries_of(case.file), case.copies, 0))
    begun_s = time.perf_counter()
    result = simulate(config, feed, scheduled(SchedulingConfig()))
    return result, time.perf_counter() - begun_s


def figures_of(result: SimResult, took_s: float) -> dict[str, float | None]:
    jobs = result.jobs
    ttfts = [job.first_token_at - job.ask.at_s for job in jobs if job.first_token_at is not None]
    found = stats.describe(ttfts, 0, with_intervals=False)
    prompt_tokens = sum(job.ask.prompt_tokens for job in jobs)
    return {
        "requests": len(jobs),
        "simulated_per_s": len(jobs) / took_s,
        "median_ttft_ms": _ms(found.median),
        "p95_ttft_ms": _ms(found.percentiles[95]),
        "p99_ttft_ms": _ms(found.percentiles[99]),
        "output_tokens_per_s": sum(job.num_generated for job in jobs) / result.ended_at,
        "busy_share": result.utilisation.busy,
        "cached_share": sum(job.cached_tokens for job in jobs) / prompt_tokens,
        "failed": len(jobs) - len(result.completed),
    }


async def measure(quick: bool) -> Result:
    figures: dict[str, float | None] = {}
    details: dict[str, Any] = {}
    num_requests, spent_s, num_failed = 0.0, 0.0, 0.0
    for name, case in (QUICK if quick else FULL).items():
        result, took_s = await asyncio.to_thread(replayed, case)
        found = figures_of(result, took_s)
        details[name] = {**asdict(case), "took_s": took_s, "ended_at_s": result.ended_at, **found}
        for figure in ("median_ttft_ms", "p99_ttft_ms", "output_tokens_per_s", "busy_share", "cached_share"):
            figures[f"{name}_{figure}"] = found[figure]
        num_requests += len(result.jobs)
        num_failed += len(result.jobs) - len(result.completed)
        spent_s += took_s
    figures["requests"] = num_requests
    figures["requests_per_s"] = num_requests / spent_s
    figures["spent_s"] = spent_s
    figures["failed"] = num_failed
    return Result(figures, details)


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else 1e3 * value_s


SCENARIO = Scenario(
    name="replay-sim",
    question="Are unscaled replays of the Azure and Mooncake traces through fleets of up to 200 replicas "
    "simulated in minutes?",
    workload={"model": GPU, "full": FULL, "quick": QUICK},
    bars=(Bar("spent_s", "<=", 300.0), Bar("failed", "<=", 0.0)),
    run=measure,
)
