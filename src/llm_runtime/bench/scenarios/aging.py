"""A minority of urgent requests at high load: what ageing gains for them, and what it costs the others.

Lengths are drawn as recorded conversations are, log-normally: most are short and some are long, which is
what makes queues. Beside the long run stands the small one that others published, of which the scenario
`priority` has the real server's side: 24 requests of low priority and, 40 ms later, 8 of high priority on
an engine that runs batches of four, with what could be done at best.

Starved is who waits for the first token longer than ten times what that takes on an empty engine. Ageing
alone cannot keep fewer of the low class from that than FIFO does: who is overtaken waits longer. Serving
the shorter of them first can, and the arm `aging_shortest` does both.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.scenarios import priority
from llm_runtime.bench.sim.fairness import jain, starved_share
from llm_runtime.bench.sim.job import Ask, Job
from llm_runtime.bench.sim.models import EMBEDDED
from llm_runtime.bench.sim.seeds import Figures, ratios
from llm_runtime.bench.sim.study import (
    ENGINE,
    FIFO,
    Arm,
    Study,
    Workload,
    details,
    e2e_s,
    of,
    over_seeds,
    ttft_s,
)
from llm_runtime.bench.sim.unloaded import Unloaded
from llm_runtime.bench.trial import NUM_SEEDS, Bench, confirmed
from llm_runtime.scheduling.config import SchedulingConfig

LOAD, HIGH_SHARE, NUM_REQUESTS = 0.9, 0.15, 2500
HIGH, LOW = 2, 8
PROMPT, OUTPUT = (16, 0.6), (48, 0.8)
"""Median and sigma of log-normal lengths, cut at eight times the median."""
DIVIDED_BY, REAL_SIZE = 4, 0.08
STARVED_AFTER = 10.0
SEEDS, QUICK_SEEDS = range(30), range(4)
BENCH = Bench(num_threads=2, num_slots=2)
"""Few slots, so that a run of minutes has queues at the same load."""
AGING = SchedulingConfig(policy="priority", priority_aging_boost_interval_s=2.0, batch_prompts=1)
ARMS: Mapping[str, Arm] = {
    "engine": ENGINE,
    "fifo": FIFO,
    "strict": Arm(SchedulingConfig(policy="priority")),
    "aging": Arm(AGING),
    "aging_shortest": Arm(
        SchedulingConfig(
            policy="shortest", priority_aging_boost_interval_s=2.0, batch_prompts=1, shortest_patience=0.3
        )
    ),
}
REAL_ARMS: Mapping[str, Arm] = {name: ARMS[name] for name in ("engine", "fifo", "aging")}
SMALL_ARMS = {"fifo": "fifo", "strict": "strict", "aging": "aging"}


def length(source: random.Random, shape: tuple[int, float], divided_by: int) -> int:
    median, sigma = shape
    return max(1, round(min(source.lognormvariate(math.log(median), sigma), 8 * median) / divided_by))


def draw(seed: int, size: float, *, divided_by: int = 1) -> list[Ask]:
    source = random.Random(f"aging:{seed}")
    at, asks = 0.0, []
    for number in range(round(NUM_REQUESTS * size)):
        at += source.expovariate(LOAD)
        high = source.random() < HIGH_SHARE
        prompt, output = length(source, PROMPT, divided_by), length(source, OUTPUT, divided_by)
        name = "high" if high else "low"
        asks.append(
            Ask(number, at, prompt, output, output, name, tenant=name, priority=HIGH if high else LOW)
        )
    return asks


def figures_of(jobs: Sequence[Job], alone: Unloaded) -> Figures:
    high, low = ([ttft_s(job) for job in of(jobs, name)] for name in ("high", "low"))
    budget_s = STARVED_AFTER * alone.ttft_s
    return {
        "high_mean_ttft_s": fmean(high),
        "high_worst_ttft_s": max(high),
        "low_mean_ttft_s": fmean(low),
        "low_worst_ttft_s": max(low),
        "starved_share": starved_share([*high, *low], budget_s) or 0.0,
        "low_starved_share": starved_share(low, budget_s) or 0.0,
        "jain": jain([job.num_generated / e2e_s(job) for job in jobs]) or 0.0,
    }


def study(arms: Mapping[str, Arm], divided_by: int) -> Study:
    reference = (PROMPT[0] // divided_by, OUTPUT[0] // divided_by)
    return Study(Workload(partial(draw, divided_by=divided_by), reference), arms, figures_of)


STUDY, REAL_STUDY = study(ARMS, 1), study(REAL_ARMS, DIVIDED_BY)


def told(found: Sequence[Mapping[str, Figures]]) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for name in found[0]:
        if name in ("fifo", "engine"):
            continue
        high = ratios(found, name, "fifo", "high_mean_ttft_s")
        figures[f"{name}_high_mean_ttft_below_fifo"] = 1 - high.mean
        figures[f"{name}_high_mean_ttft_below_engine"] = (
            1 - ratios(found, name, "engine", "high_mean_ttft_s").mean
        )
        worst = ratios(found, name, "fifo", "low_worst_ttft_s")
        figures[f"{name}_low_worst_by_fifo"] = worst.mean
        for share in ("starved_share", "low_starved_share"):
            more = [each[name][share] - each["fifo"][share] for each in found]
            figures[f"{name}_{share}_above_fifo"] = fmean(more)
    return figures


def small() -> dict[str, Any]:
    """The published scenario in the simulator, beside the best that can be done."""
    found = {name: priority.figures_of(priority.simulated(priority.ARMS[name])) for name in SMALL_ARMS}
    best = {f"{factor:g}": priority.best(factor, 1) for factor in priority.WAIT_LIMITS}
    return {"found": found, "best_high_mean_ttft_ms_by_low_worst_wait": best}


async def measure(quick: bool) -> Result:
    found = await over_seeds(STUDY, EMBEDDED, QUICK_SEEDS if quick else SEEDS)
    return Result(told(found), {"simulated": details(found), "small": small()})


async def measure_on_engine(quick: bool) -> Result:
    model = replace(EMBEDDED, num_slots=BENCH.num_slots)
    trial = await confirmed(REAL_STUDY, model, REAL_SIZE, BENCH, quick=quick)
    return Result(told(trial["found"]), trial)


SCENARIO = Scenario(
    name="aging",
    question="At 0.9 load with 15 % of urgent requests, do these get their first token 70 % sooner than with "
    "FIFO while nobody else waits much longer than the longest wait of FIFO, nor more of them long?",
    workload={
        "model": EMBEDDED, "load": LOAD, "high_share": HIGH_SHARE, "requests": NUM_REQUESTS,
        "priorities": {"low": LOW, "high": HIGH}, "prompt": PROMPT, "output": OUTPUT, "arms": ARMS,
        "seeds": len(SEEDS), "starved_after_unloaded_ttfts": STARVED_AFTER,
    },
    bars=(
        Bar("aging_high_mean_ttft_below_fifo", ">=", 0.70),
        Bar("aging_low_worst_by_fifo", "<=", 1.25),
        Bar("aging_starved_share_above_fifo", "<=", 0.0),
        Bar("aging_shortest_high_mean_ttft_below_fifo", ">=", 0.70),
        Bar("aging_shortest_low_worst_by_fifo", "<=", 1.25),
        Bar("aging_shortest_low_starved_share_above_fifo", "<=", 0.0),
    ),
    run=measure,
)  # fmt: skip

ON_ENGINE = Scenario(
    name="aging-engine",
    question="Does ageing do on the embedded engine what the simulator says?",
    workload={
        "drawn_as": SCENARIO.workload, "num_seeds": NUM_SEEDS,
        "lengths_divided_by": DIVIDED_BY, "size": REAL_SIZE, "bench": BENCH,
        "arms": REAL_ARMS,
    },
    bars=(
        Bar("aging_high_mean_ttft_below_fifo", ">=", 0.70, quick=False),
        Bar("aging_low_worst_by_fifo", "<=", 1.25, quick=False),
        Bar("aging_starved_share_above_fifo", "<=", 0.0, quick=False),
    ),
    run=measure_on_engine,
)  # fmt: skip
