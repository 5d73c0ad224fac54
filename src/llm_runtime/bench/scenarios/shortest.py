"""Short answers behind long ones: what serving the shortest predicted first gains, and whether it loses
anything when its predictions are wrong.

All requests name the same cap, so only the tenants' histories tell who is short. Two predictors are wrong
on purpose, in the simulator: one says the opposite of the truth from the beginning, the other is right for
half of the run, long enough to be trusted, and says the opposite from then on. On the engine itself an
answer is as long as its cap, so there the prediction is right, and only the gain is confirmed
(`shortest-engine`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

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
    of,
    over_seeds,
    percentile,
)
from llm_runtime.bench.sim.unloaded import Unloaded
from llm_runtime.bench.trial import NUM_SEEDS, Bench, confirmed
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.history import PredictTokens

LOAD, CAP, NUM_REQUESTS = 0.85, 1024, 2500
KINDS: Mapping[str, tuple[float, tuple[int, int], tuple[int, int]]] = {
    "short": (0.9, (8, 24), (2, 8)),
    "long": (0.1, (16, 48), (300, 600)),
}
"""Share, prompt and answer lengths, drawn evenly. Three tenants each."""
DIVIDED_BY, REAL_SIZE = 4, 0.08
SEEDS, QUICK_SEEDS = range(30), range(4)
BENCH = Bench(num_threads=2, num_slots=3)
"""Few slots, so that a run of minutes has queues at the same load."""
SHORTEST = SchedulingConfig(policy="shortest", shortest_reserve_slots=1)


def draw(seed: int, size: float, *, divided_by: int = 1) -> list[Ask]:
    """divided_by: above 1 the cap is the answer's length."""
    source = random.Random(f"shortest:{seed}")
    shares = [share for share, _, _ in KINDS.values()]
    at, asks = 0.0, []
    for number in range(round(NUM_REQUESTS * size)):
        at += source.expovariate(LOAD)
        name = source.choices(list(KINDS), shares)[0]
        _, prompt, output = KINDS[name]
        tenant = f"{name}-{source.randrange(3)}"
        prompt_tokens = max(1, source.randint(*prompt) // divided_by)
        output_tokens = max(1, source.randint(*output) // divided_by)
        cap = CAP if divided_by == 1 else output_tokens
        asks.append(Ask(number, at, prompt_tokens, output_tokens, cap, name, tenant))
    return asks


def opposite(asks: Sequence[Ask], *, from_share: float = 0.0) -> PredictTokens:
    """Long for the short and short for the long, from that share of the requests on; before it the
    truth."""
    lengths = {str(ask.number): ask.output_tokens for ask in asks}
    turns_at = from_share * len(asks)

    def predict(request: RuntimeRequest) -> float:
        tokens = lengths[request.id]
        return float(tokens if int(request.id) < turns_at else max(1, CAP - tokens))

    return predict


ARMS: Mapping[str, Arm] = {
    "engine": ENGINE,
    "fifo": FIFO,
    "shortest": Arm(SHORTEST),
    "every_slot": Arm(SchedulingConfig(policy="shortest")),
    "wrong": Arm(SHORTEST, guess=opposite),
    "turned_wrong": Arm(SHORTEST, guess=partial(opposite, from_share=0.5)),
}
REAL_ARMS: Mapping[str, Arm] = {name: ARMS[name] for name in ("engine", "fifo", "shortest")}


def figures_of(jobs: Sequence[Job], alone: Unloaded) -> Figures:
    short, long = ([e2e_s(job) for job in of(jobs, name)] for name in KINDS)
    return {
        "short_mean_s": fmean(short),
        "long_mean_s": fmean(long),
        "long_p99_s": percentile(long, 99),
        "mean_s": fmean([*short, *long]),
    }


def study(arms: Mapping[str, Arm], divided_by: int) -> Study:
    return Study(Workload(partial(draw, divided_by=divided_by), (16, 5)), arms, figures_of)


STUDY, REAL_STUDY = study(ARMS, 1), study(REAL_ARMS, DIVIDED_BY)


def told(found: Sequence[Mapping[str, Figures]]) -> dict[str, float | None]:
    figures: dict[str, float | None] = {
        "short_mean_better": ratios(found, "fifo", "shortest", "short_mean_s").mean,
        "short_mean_better_than_engine": ratios(found, "engine", "shortest", "short_mean_s").mean,
        "long_p99_by_fifo": ratios(found, "shortest", "fifo", "long_p99_s").mean,
    }
    if "every_slot" in found[0]:
        figures["every_slot_short_mean_better"] = ratios(found, "fifo", "every_slot", "short_mean_s").mean
    for name in ("wrong", "turned_wrong"):
        if name in found[0]:
            figures[f"{name}_mean_by_fifo"] = ratios(found, name, "fifo", "mean_s").mean
    return figures


async def measure(quick: bool) -> Result:
    found = await over_seeds(STUDY, EMBEDDED, QUICK_SEEDS if quick else SEEDS)
    return Result(told(found), {"simulated": details(found)})


async def measure_on_engine(quick: bool) -> Result:
    model = replace(EMBEDDED, num_slots=BENCH.num_slots)
    trial = await confirmed(REAL_STUDY, model, REAL_SIZE, BENCH, quick=quick)
    return Result(told(trial["found"]), trial)


SCENARIO = Scenario(
    name="shortest",
    question="Are short requests served at least twice as fast at 0.85 load without making long ones wait, "
    "and does a predictor that is wrong do no harm?",
    workload={
        "model": EMBEDDED, "load": LOAD, "cap": CAP, "requests": NUM_REQUESTS, "kinds": KINDS,
        "policy": SHORTEST, "seeds": len(SEEDS),
    },
    bars=(
        Bar("short_mean_better", ">=", 2.0),
        Bar("long_p99_by_fifo", "<=", 1.3),
        Bar("wrong_mean_by_fifo", "<=", 1.1),
        Bar("turned_wrong_mean_by_fifo", "<=", 1.1),
    ),
    run=measure,
)  # fmt: skip

ON_ENGINE = Scenario(
    name="shortest-engine",
    question="Does serving the shortest first gain on the embedded engine what the simulator says?",
    workload={
        "drawn_as": SCENARIO.workload, "num_seeds": NUM_SEEDS,
        "lengths_divided_by": DIVIDED_BY, "size": REAL_SIZE, "bench": BENCH,
        "arms": REAL_ARMS,
    },
    bars=(
        Bar("short_mean_better", ">=", 2.0, quick=False),
        Bar("long_p99_by_fifo", "<=", 1.3, quick=False),
    ),
    run=measure_on_engine,
)  # fmt: skip
