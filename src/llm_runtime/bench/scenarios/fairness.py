"""One tenant floods, another wants twice its share, a third a little: is the work divided by tenant, at what
cost, and does the small tenant notice the others?

Shares are a third each. The flood asks for four times its share, so both heavy tenants always have requests
waiting, and what each of them was served in that time is to be equal: prompt tokens count 1, generated ones
2. The small tenant's time to first token is compared with what it is when nobody else is there. The model
is of a large GPU with 64 slots; on the embedded engine, with its 8, requests are far smaller and fewer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.sim.fairness import backlogged, by_tenant, common, length_s, service
from llm_runtime.bench.sim.job import Ask, Job
from llm_runtime.bench.sim.models import EMBEDDED, SERVER_GPU
from llm_runtime.bench.sim.seeds import Figures, ratios
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
from llm_runtime.core.errors import BackendError
from llm_runtime.scheduling.config import SchedulingConfig


@dataclass(frozen=True, slots=True)
class Load:
    """units: of load, each the time in which a full engine answers one request. *_per_unit: requests of each
    tenant. heavy_*: lengths of the first two's, drawn evenly; cap: of all."""

    units: float
    flood_per_unit: float
    busy_per_unit: float
    light_per_unit: float
    light: tuple[int, int]
    heavy_prompt: tuple[int, int]
    heavy_output: tuple[int, int]
    cap: int


BACKLOG = 8
"""Requests without a token from which on a tenant counts as backlogged: more than an engine computes
prompts of at once."""
LOAD = Load(2100, 4 / 3, 2 / 3, 0.1, (1024, 16), (256, 768), (128, 384), 512)
REAL_LOAD = Load(160, 4 / 3, 5 / 6, 0.12, (24, 4), (8, 24), (4, 20), 20)
"""The speed of a real machine wanders: with more of the busy tenant both stay backlogged all the same."""
SEEDS, QUICK_SEEDS = range(30), range(2)
BENCH = Bench(num_threads=2)
FAIR = SchedulingConfig(policy="fair")
RESERVED = SchedulingConfig(policy="fair", fair_reserve_slots=4, fair_prompts=1, fair_credit_tokens=32768)
REAL_RESERVED = SchedulingConfig(policy="fair", fair_reserve_slots=1, fair_prompts=1)
ARMS: Mapping[str, Arm] = {
    "alone": Arm(FAIR, only=("light",)),
    "engine": ENGINE,
    "fifo": FIFO,
    "fair": Arm(FAIR),
    "reserved": Arm(RESERVED),
}
REAL_ARMS: Mapping[str, Arm] = {
    "alone": Arm(REAL_RESERVED, only=("light",)),
    "engine": ENGINE,
    "fifo": FIFO,
    "reserved": Arm(REAL_RESERVED),
}


def draw(seed: int, size: float, *, load: Load = LOAD) -> list[Ask]:
    """Each tenant by itself, so that leaving one out changes nothing for the others."""
    due: list[tuple[float, str, int, int]] = []
    for tenant, per_unit in (
        ("flood", load.flood_per_unit),
        ("busy", load.busy_per_unit),
        ("light", load.light_per_unit),
    ):
        source = random.Random(f"fairness:{seed}:{tenant}")
        at = source.expovariate(per_unit)
        while at < load.units * size:
            lengths = (source.randint(*load.heavy_prompt), source.randint(*load.heavy_output))
            due.append((at, tenant, *(load.light if tenant == "light" else lengths)))
            at += source.expovariate(per_unit)
    due.sort()
    return [
        Ask(number, at, prompt, output, max(load.cap, output), tenant, tenant)
        for number, (at, tenant, prompt, output) in enumerate(due)
    ]


def exact(asks: Sequence[Ask]) -> list[Ask]:
    """Real engines here answer as long as the cap says."""
    return [Ask(a.number, a.at_s, a.prompt_tokens, a.output_tokens, a.output_tokens, a.traffic, a.tenant)
            for a in asks]  # fmt: skip


def draw_real(seed: int, size: float) -> list[Ask]:
    return exact(draw(seed, size, load=REAL_LOAD))


def figures_of(jobs: Sequence[Job], alone: Unloaded) -> Figures:
    light = [ttft_s(job) for job in of(jobs, "light")]
    figures = {
        "light_mean_ttft_s": fmean(light),
        "light_p99_ttft_s": percentile(light, 99),
        "light_requests": float(len(light)),
    }
    tenants = by_tenant(jobs)
    if len(tenants) == 1:
        return figures
    end_s = max(job.ask.at_s for job in jobs)
    heavy = [backlogged(tenants[name], at_least=BACKLOG, in_engine=True) for name in ("flood", "busy")]
    both = [(since, min(to, end_s)) for since, to in common(heavy) if since < end_s]
    served = {name: service(tenants[name], both) for name in ("flood", "busy")}
    if not all(served.values()):
        raise BackendError("the heavy tenants were never backlogged together: the engine became faster")
    return figures | {
        "flood_by_busy": served["flood"] / served["busy"],
        "both_backlogged_share": length_s(both) / end_s,
        "tokens_per_s": service(jobs, [(0.0, end_s)]) / end_s,
    }


STUDY = Study(Workload(partial(draw, load=LOAD), LOAD.light, "busy"), ARMS, figures_of)
REAL_STUDY = Study(Workload(draw_real, REAL_LOAD.light, "busy"), REAL_ARMS, figures_of)


def told(found: Sequence[Mapping[str, Figures]]) -> dict[str, float | None]:
    """inequality: the larger of the two heavy tenants' services by the smaller."""
    figures: dict[str, float | None] = {}
    for name in found[0]:
        if name == "alone":
            continue
        p99 = ratios(found, name, "alone", "light_p99_ttft_s")
        mean = ratios(found, name, "alone", "light_mean_ttft_s")
        figures[f"{name}_light_p99_ttft_by_alone"] = p99.mean
        figures[f"{name}_light_mean_ttft_by_alone"] = mean.mean
        uneven = [max(each[name]["flood_by_busy"], 1 / each[name]["flood_by_busy"]) for each in found]
        figures[f"{name}_inequality"] = fmean(uneven)
        figures[f"{name}_worst_inequality"] = max(uneven)
        figures[f"{name}_throughput_by_fifo"] = ratios(found, name, "fifo", "tokens_per_s").mean
    return figures


async def measure(quick: bool) -> Result:
    found = await over_seeds(STUDY, SERVER_GPU, QUICK_SEEDS if quick else SEEDS)
    return Result(told(found), {"simulated": details(found)})


async def measure_on_engine(quick: bool) -> Result:
    trial = await confirmed(REAL_STUDY, EMBEDDED, 1.0, BENCH, quick=quick)
    return Result(told(trial["found"]), trial)


SCENARIO = Scenario(
    name="fairness",
    question="With one tenant flooding four times its share, are backlogged tenants served within 1.1 of "
    "each other at no less than 0.98 of FIFO's throughput, and is a small tenant's p99 TTFT at most 1.5 "
    "times what it is alone?",
    workload={
        "model": SERVER_GPU, "load": LOAD, "arms": ARMS, "seeds": len(SEEDS),
    },
    bars=(
        Bar("reserved_worst_inequality", "<=", 1.1),
        Bar("reserved_throughput_by_fifo", ">=", 0.98),
        Bar("reserved_light_p99_ttft_by_alone", "<=", 1.5),
        Bar("fair_worst_inequality", "<=", 1.1),
        Bar("fair_throughput_by_fifo", ">=", 0.98),
    ),
    run=measure,
)  # fmt: skip

ON_ENGINE = Scenario(
    name="fairness-engine",
    question="Is the work of the embedded engine divided by tenant as the simulator says?",
    workload={
        "drawn_as": SCENARIO.workload, "num_seeds": NUM_SEEDS,
        "model": EMBEDDED, "load": REAL_LOAD, "bench": BENCH, "arms": REAL_ARMS,
    },
    bars=(
        Bar("reserved_inequality", "<=", 1.1, quick=False),
        Bar("reserved_throughput_by_fifo", ">=", 0.98, quick=False),
        Bar("reserved_light_p99_ttft_by_alone", "<=", 1.5, quick=False),
    ),
    run=measure_on_engine,
)  # fmt: skip
