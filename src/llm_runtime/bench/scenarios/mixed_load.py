"""Live requests beside a crowd of batch work: does capping the batch class keep the live ones within their
objectives, and what does it cost the batch?

Lengths keep the proportions of the mixed-load study that others published (256 and 128 tokens live, 1,024
and 256 batch). They are divided by 8 for the model of the embedded engine, and by 16 on the engine itself,
where there are also fewer of them. Instants are in units of what one batch request takes of a full engine;
the published study had the crowd come after an eighth of the live requests, as here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from llm_runtime.bench.scenario import Bar, Result, Scenario
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
    makespan_s,
    of,
    over_seeds,
    percentile,
    ttft_s,
)
from llm_runtime.bench.sim.unloaded import Multiples, Unloaded, objectives
from llm_runtime.bench.trial import NUM_SEEDS, Bench, confirmed
from llm_runtime.scheduling.config import SchedulingConfig

NUM_LIVE, LIVE_PER_UNIT, LIVE_PROMPT, LIVE_OUTPUT = 64, 0.27, 256, 128
NUM_BATCH, BATCH_AT, BATCH_PROMPT, BATCH_OUTPUT = 128, 27.0, 1024, 256
DIVIDED_BY, REAL_DIVIDED_BY, REAL_SIZE = 8, 16, 0.2
SEEDS, QUICK_SEEDS = range(30), range(6)
OBJECTIVES = Multiples(ttft=10.0, e2e=8.0)
BENCH = Bench(num_threads=2)


def capped(**caps: Any) -> Arm:
    return Arm(SchedulingConfig(policy="priority", **caps))


CAPPED = capped(batch_slot_share=0.75, batch_prompts=1, batch_prompt_time_share=0.7)
ARMS: Mapping[str, Arm] = {
    "engine": ENGINE,
    "fifo": FIFO,
    "priority": capped(),
    "slots_1": capped(batch_slot_share=0.125),
    "slots_2": capped(batch_slot_share=0.25),
    "slots_4": capped(batch_slot_share=0.5),
    "slots_6": capped(batch_slot_share=0.75),
    "prompts": capped(batch_prompts=1),
    "preempting": capped(preempt="prompts"),
    "capped": CAPPED,
}
REAL_ARMS: Mapping[str, Arm] = {"engine": ENGINE, "fifo": FIFO, "capped": CAPPED}


def draw(seed: int, size: float, *, divided_by: int = DIVIDED_BY) -> list[Ask]:
    """The crowd comes in whole at its instant; live requests come by themselves."""
    source = random.Random(f"mixed-load:{seed}")
    batch = (BATCH_AT * size, BATCH_PROMPT // divided_by, BATCH_OUTPUT // divided_by, "batch", 8)
    at, due = 0.0, [batch] * round(NUM_BATCH * size)
    for _ in range(round(NUM_LIVE * size)):
        at += source.expovariate(LIVE_PER_UNIT)
        due.append((at, LIVE_PROMPT // divided_by, LIVE_OUTPUT // divided_by, "live", 2))
    due.sort(key=lambda each: each[0])
    return [
        Ask(number, at, prompt, output, output, traffic=name, tenant=name, priority=priority)
        for number, (at, prompt, output, name, priority) in enumerate(due)
    ]


def figures_of(jobs: Sequence[Job], alone: Unloaded) -> Figures:
    slo = objectives(OBJECTIVES, alone)
    assert slo.ttft_s is not None
    assert slo.e2e_s is not None
    live, batch = of(jobs, "live"), of(jobs, "batch")
    good = [ttft_s(job) <= slo.ttft_s and e2e_s(job) <= slo.e2e_s for job in live]
    return {
        "live_good": sum(good) / len(live),
        "live_median_ttft_s": percentile([ttft_s(job) for job in live], 50),
        "live_p95_ttft_s": percentile([ttft_s(job) for job in live], 95),
        "batch_makespan_s": makespan_s(batch),
    }


def study(arms: Mapping[str, Arm], divided_by: int) -> Study:
    reference = (LIVE_PROMPT // divided_by, LIVE_OUTPUT // divided_by)
    return Study(Workload(partial(draw, divided_by=divided_by), reference, "batch"), arms, figures_of)


STUDY, REAL_STUDY = study(ARMS, DIVIDED_BY), study(REAL_ARMS, REAL_DIVIDED_BY)


def told(found: Sequence[Mapping[str, Figures]]) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for name in found[0]:
        figures[f"{name}_live_good"] = sum(each[name]["live_good"] for each in found) / len(found)
        by_fifo = ratios(found, name, "fifo", "batch_makespan_s")
        figures[f"{name}_makespan_by_fifo"] = by_fifo.mean
    return figures


async def measure(quick: bool) -> Result:
    found = await over_seeds(STUDY, EMBEDDED, QUICK_SEEDS if quick else SEEDS)
    return Result(told(found), {"simulated": details(found)})


async def measure_on_engine(quick: bool) -> Result:
    trial = await confirmed(REAL_STUDY, EMBEDDED, REAL_SIZE, BENCH, quick=quick)
    return Result(told(trial["found"]), trial)


SCENARIO = Scenario(
    name="mixed-load",
    question="Do caps on the batch class keep 95 % of live requests within their objectives at no more than "
    "1.10 times FIFO's batch makespan, in the simulator?",
    workload={
        "model": EMBEDDED, "lengths_divided_by": DIVIDED_BY, "arms": ARMS, "seeds": len(SEEDS),
        "live": [NUM_LIVE, LIVE_PER_UNIT, LIVE_PROMPT, LIVE_OUTPUT],
        "batch": [NUM_BATCH, BATCH_AT, BATCH_PROMPT, BATCH_OUTPUT],
    },
    slos={"live": {"multiples_of_unloaded": OBJECTIVES}},
    bars=(
        Bar("fifo_live_good", "<=", 0.50),
        Bar("capped_live_good", ">=", 0.95),
        Bar("capped_makespan_by_fifo", "<=", 1.10),
    ),
    run=measure,
)  # fmt: skip

ON_ENGINE = Scenario(
    name="mixed-load-engine",
    question="Do caps on the batch class do on the embedded engine what the simulator says?",
    workload={
        "drawn_as": SCENARIO.workload, "num_seeds": NUM_SEEDS,
        "lengths_divided_by": REAL_DIVIDED_BY, "size": REAL_SIZE, "bench": BENCH, "arms": REAL_ARMS,
    },
    slos={"live": {"multiples_of_unloaded": OBJECTIVES}},
    bars=(
        Bar("fifo_live_good", "<=", 0.50, quick=False),
        Bar("capped_live_good", ">=", 0.95, quick=False),
        Bar("capped_makespan_by_fifo", "<=", 1.10, quick=False),
    ),
    run=measure_on_engine,
)  # fmt: skip
