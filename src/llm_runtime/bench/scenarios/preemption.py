"""Urgent requests, few, while every slot is held by long batch work: what taking a slot away gains them over
waiting for the next one to come free, and what the batch loses.

A crowd of batch requests is there from the start and keeps all slots busy until the last urgent one came.
`priority` puts urgent ones first in the queue; `prompts` also sends batch requests that have no token yet
back to it, where only prompt work is lost; `batch` ends running ones, whose clients have part of an answer.
`kept` interrupts nobody: the batch may hold three quarters of the slots. In all of ours one batch prompt is
computed at a time, so that urgent ones do not stand behind a row of them in the engine. Lost is the share of
tokens, computed ones counted only, that went into answers which were ended. On the embedded engine
(`preemption-engine`) there are fewer requests, and lengths are divided.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.sim.job import Ask, Job
from llm_runtime.bench.sim.models import EMBEDDED
from llm_runtime.bench.sim.seeds import Figures, estimate, ratios
from llm_runtime.bench.sim.study import (
    ENGINE,
    FIFO,
    Arm,
    Study,
    Workload,
    details,
    of,
    over_seeds,
    percentile,
    ttft_s,
)
from llm_runtime.bench.sim.unloaded import Unloaded
from llm_runtime.bench.trial import NUM_SEEDS, Bench, confirmed
from llm_runtime.scheduling.config import SchedulingConfig

NUM_URGENT, URGENT_PER_UNIT, URGENT = 60, 0.2, (16, 16)
NUM_BATCH, BATCH_PROMPT, BATCH_OUTPUT = 320, (128, 384), (300, 900)
"""Prompt and answer lengths; those of the batch drawn evenly."""
REAL_DIVIDED_BY, REAL_SIZE, REAL_MORE_URGENT = 8, 0.045, 2.5
SEEDS, QUICK_SEEDS = range(30), range(4)
BENCH = Bench(num_threads=2)


def ours(**settings: Any) -> Arm:
    return Arm(SchedulingConfig(policy="priority", batch_prompts=1, **settings))


ARMS: Mapping[str, Arm] = {
    "engine": ENGINE,
    "fifo": FIFO,
    "priority": ours(),
    "kept": ours(batch_slot_share=0.75),
    "prompts": ours(preempt="prompts"),
    "batch": ours(preempt="batch"),
}


REAL_ARMS: Mapping[str, Arm] = {name: ARMS[name] for name in ("engine", "fifo", "priority", "batch")}


def draw(seed: int, size: float, *, divided_by: int = 1, more_urgent: float = 1.0) -> list[Ask]:
    """more_urgent: times as many urgent requests, as often, for a run too short for a few to tell."""
    source = random.Random(f"preemption:{seed}")
    asks = []
    for number in range(round(NUM_BATCH * size)):
        prompt, output = (source.randint(*span) // divided_by for span in (BATCH_PROMPT, BATCH_OUTPUT))
        asks.append(Ask(number, 0.0, prompt, output, output, "batch", priority=8))
    prompt, output = (length // divided_by for length in URGENT)
    at = 0.0
    for number in range(len(asks), len(asks) + round(NUM_URGENT * more_urgent * size)):
        at += source.expovariate(URGENT_PER_UNIT * more_urgent)
        asks.append(Ask(number, at, prompt, output, output, "urgent", priority=2))
    return asks


def tokens(jobs: Sequence[Job]) -> int:
    return sum(job.ask.prompt_tokens + job.num_generated for job in jobs)


def figures_of(jobs: Sequence[Job], alone: Unloaded) -> Figures:
    urgent, batch = [ttft_s(job) for job in of(jobs, "urgent")], of(jobs, "batch")
    ended = [job for job in batch if job.error is not None]
    done = [job for job in batch if job.error is None]
    lasted_s = max(job.finished_at or 0.0 for job in batch)
    return {
        "urgent_mean_ttft_s": fmean(urgent),
        "urgent_p95_ttft_s": percentile(urgent, 95),
        "ended_share": len(ended) / len(batch),
        "lost_share": tokens(ended) / tokens(batch),
        "batch_tokens_per_s": tokens(done) / lasted_s,
    }


STUDY = Study(Workload(draw, URGENT, "batch"), ARMS, figures_of, may_fail=True)
REAL_STUDY = Study(
    Workload(
        partial(draw, divided_by=REAL_DIVIDED_BY, more_urgent=REAL_MORE_URGENT),
        (URGENT[0] // REAL_DIVIDED_BY, URGENT[1] // REAL_DIVIDED_BY),
        "batch",
    ),
    REAL_ARMS,
    figures_of,
    may_fail=True,
)


def told(found: Sequence[Mapping[str, Figures]]) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for name in found[0]:
        for figure in ("urgent_mean_ttft_s", "urgent_p95_ttft_s", "ended_share", "lost_share"):
            figures[f"{name}_{figure}"] = estimate([each[name][figure] for each in found]).mean
        figures[f"{name}_batch_throughput_by_fifo"] = ratios(found, name, "fifo", "batch_tokens_per_s").mean
    for name in {"kept", "prompts", "batch"} & found[0].keys():
        by_priority = ratios(found, name, "priority", "urgent_mean_ttft_s")
        figures[f"{name}_urgent_mean_ttft_by_priority"] = by_priority.mean
    return figures


async def measure(quick: bool) -> Result:
    found = await over_seeds(STUDY, EMBEDDED, QUICK_SEEDS if quick else SEEDS)
    return Result(told(found), {"simulated": details(found)})


async def measure_on_engine(quick: bool) -> Result:
    trial = await confirmed(REAL_STUDY, EMBEDDED, REAL_SIZE, BENCH, quick=quick)
    return Result(told(trial["found"]), trial)


SCENARIO = Scenario(
    name="preemption",
    question="While batch work holds every slot, how much sooner do urgent requests start when it gives way, "
    "and what does it lose?",
    workload={
        "model": EMBEDDED, "urgent": [NUM_URGENT, URGENT_PER_UNIT, *URGENT],
        "batch": [NUM_BATCH, BATCH_PROMPT, BATCH_OUTPUT], "arms": ARMS, "seeds": len(SEEDS),
    },
    bars=(
        Bar("prompts_urgent_mean_ttft_by_priority", "<=", 0.75),
        Bar("prompts_batch_throughput_by_fifo", ">=", 0.97),
        Bar("batch_urgent_mean_ttft_by_priority", "<=", 0.25),
        Bar("batch_batch_throughput_by_fifo", ">=", 0.90),
    ),
    run=measure,
)  # fmt: skip

ON_ENGINE = Scenario(
    name="preemption-engine",
    question="Does taking slots from running batch work do on the embedded engine what the simulator says?",
    workload={
        "drawn_as": SCENARIO.workload, "num_seeds": NUM_SEEDS, "lengths_divided_by": REAL_DIVIDED_BY,
        "size": REAL_SIZE, "more_urgent": REAL_MORE_URGENT, "bench": BENCH, "arms": REAL_ARMS,
    },
    bars=(Bar("batch_urgent_mean_ttft_by_priority", "<=", 0.5, quick=False),),
    run=measure_on_engine,
)  # fmt: skip
