"""Clients of little and of much patience: what serving the earliest deadline first gains, and what it costs.

Half of the clients wait ten times as long for their first token as it takes on an empty engine, the others a
hundred and fifty times, and all of them say so. Who has no token by then is not served any more, under any
policy: under `fifo` and in the engine's own queue it leaves when its time is up, under `deadline` as soon as
it can no longer be served in time. Good is who had its first token in time; who was refused or ended is not.
Below capacity and above it, since an order that is best for one can be the worst for the other: what is
certain to be late must not be served before what is not.

On the embedded engine (`deadline-engine`) clients declare their limits in `x-slo-ttft-ms`, and leave when
time is up; there only above capacity, where a few requests show the difference.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial

from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.sim.job import Ask, Job
from llm_runtime.bench.sim.models import EMBEDDED
from llm_runtime.bench.sim.seeds import Figures, estimate, ratios
from llm_runtime.bench.sim.study import ENGINE, FIFO, Arm, Study, Workload, details, of, over_seeds, ttft_s
from llm_runtime.bench.sim.unloaded import Unloaded
from llm_runtime.bench.trial import NUM_SEEDS, Bench, confirmed
from llm_runtime.scheduling.config import SchedulingConfig

LOADS, NUM_REQUESTS = (0.9, 1.2), 2000
HURRIED_SHARE = 0.5
PATIENCE: Mapping[str, float] = {"hurried": 10.0, "patient": 150.0}
"""In multiples of the unloaded time to first token."""
PROMPT, OUTPUT = (8, 24), (8, 40)
MEAN = (16, 24)
REAL_LOAD, REAL_SIZE, REAL_BACKLOG = 1.2, 0.03, 12
SEEDS, QUICK_SEEDS = range(30), range(4)
BENCH = Bench(num_threads=2)
ARMS: Mapping[str, Arm] = {
    "engine": ENGINE,
    "fifo": FIFO,
    "deadline": Arm(SchedulingConfig(policy="deadline")),
}


def draw(seed: int, size: float, *, load: float, backlog: int = 0) -> list[Ask]:
    """backlog: requests that are there at the start, for a run too short to build one."""
    source = random.Random(f"deadline:{seed}")
    at, asks = 0.0, []
    for number in range(round(NUM_REQUESTS * size)):
        at += source.expovariate(load) if number >= backlog else 0.0
        name = "hurried" if source.random() < HURRIED_SHARE else "patient"
        output = source.randint(*OUTPUT)
        asks.append(Ask(number, at, source.randint(*PROMPT), output, output, name))
    return asks


def figures_of(jobs: Sequence[Job], alone: Unloaded) -> Figures:
    good = {
        name: sum(job.error is None and ttft_s(job) <= multiple * alone.ttft_s for job in of(jobs, name))
        for name, multiple in PATIENCE.items()
    }
    sent = {name: len(of(jobs, name)) for name in PATIENCE}
    return {
        "good": sum(good.values()) / sum(sent.values()),
        "missed": 1 - sum(good.values()) / sum(sent.values()),
        **{f"{name}_good": good[name] / sent[name] for name in PATIENCE},
    }


def study(load: float, backlog: int = 0) -> Study:
    workload = Workload(partial(draw, load=load, backlog=backlog), MEAN)
    return Study(workload, ARMS, figures_of, PATIENCE, may_fail=True)


STUDIES: Mapping[float, Study] = {load: study(load) for load in LOADS}
REAL_STUDY = study(REAL_LOAD, REAL_BACKLOG)


def told(found: Sequence[Mapping[str, Figures]], load: float) -> dict[str, float | None]:
    at = f"at_{load:g}"
    figures: dict[str, float | None] = {}
    for name in found[0]:
        for figure in ("good", *(f"{each}_good" for each in PATIENCE)):
            figures[f"{name}_{figure}_{at}"] = estimate([each[name][figure] for each in found]).mean
    for base in ("fifo", "engine"):
        figures[f"good_by_{base}_{at}"] = ratios(found, "deadline", base, "good").mean
        figures[f"missed_by_{base}_{at}"] = estimate([each["deadline"]["missed"] for each in found]).mean / (
            estimate([each[base]["missed"] for each in found]).mean
        )
    return figures


async def measure(quick: bool) -> Result:
    seeds = QUICK_SEEDS if quick else SEEDS
    found = {load: await over_seeds(each, EMBEDDED, seeds) for load, each in STUDIES.items()}
    figures = {name: value for load, each in found.items() for name, value in told(each, load).items()}
    return Result(figures, {"simulated": {f"{load:g}": details(each) for load, each in found.items()}})


async def measure_on_engine(quick: bool) -> Result:
    trial = await confirmed(REAL_STUDY, EMBEDDED, REAL_SIZE, BENCH, quick=quick)
    return Result(told(trial["found"], REAL_LOAD), trial)


SCENARIO = Scenario(
    name="deadline",
    question="With clients of little and of much patience, does serving the earliest deadline first miss at "
    "most half as many as FIFO below capacity, and serve more of them in time above it?",
    workload={
        "model": EMBEDDED, "loads": LOADS, "requests": NUM_REQUESTS, "hurried_share": HURRIED_SHARE,
        "prompt": PROMPT, "output": OUTPUT, "objectives_of": MEAN, "arms": ARMS, "seeds": len(SEEDS),
    },
    slos={name: {"multiples_of_unloaded": {"ttft": multiple}} for name, multiple in PATIENCE.items()},
    bars=(
        Bar("missed_by_fifo_at_0.9", "<=", 0.5),
        Bar("deadline_patient_good_at_0.9", ">=", 0.99),
        Bar("good_by_fifo_at_1.2", ">=", 1.05),
    ),
    run=measure,
)  # fmt: skip

ON_ENGINE = Scenario(
    name="deadline-engine",
    question="Does serving the earliest deadline first do on the embedded engine what the simulator says?",
    workload={
        "drawn_as": SCENARIO.workload, "num_seeds": NUM_SEEDS, "load": REAL_LOAD, "size": REAL_SIZE,
        "backlog": REAL_BACKLOG, "bench": BENCH,
    },
    slos=SCENARIO.slos,
    bars=(Bar("good_by_fifo_at_1.2", ">=", 1.05, quick=False),),
    run=measure_on_engine,
)  # fmt: skip
