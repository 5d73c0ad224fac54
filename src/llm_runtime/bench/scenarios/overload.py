"""Twice the load that can be carried: what is still served in time, and whether refusals tell the truth.

Open loop, Poisson. Clients declare how long they wait for the first token; the gate refuses at once who
would wait longer, so the engines work for those who are still there. Capacity is what the same engine
completes when there is always somebody waiting. Goodput: requests with their first token in time, per
second, refused and failed ones counted as sent. Beside it the same without a gate, where who has waited too
long leaves the queue, and FIFO for clients that declare nothing.

In the simulator, over many seeds, on the model of the embedded engine; `overload-engine` is the same on real
ones. In the last run of each seed who is refused comes back when told to, in up to three tries as SDKs do,
unless the wait is longer than its patience, which differs by client.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace

from llm_runtime.admission.config import AdmissionConfig
from llm_runtime.bench.lengths import Uniform
from llm_runtime.bench.returning import Patience
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.settings_json import plain
from llm_runtime.bench.sim.config import ContinuousModel, ReplicaConfig, SimConfig
from llm_runtime.bench.sim.feed import OpenFeed
from llm_runtime.bench.sim.job import UNLIMITED, Ask, Job
from llm_runtime.bench.sim.policies import scheduled
from llm_runtime.bench.sim.returns import ReturningFeed, Truth
from llm_runtime.bench.sim.seeds import Figures, estimate, estimates, over_seeds
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.bench.sim.study import UNBOUNDED
from llm_runtime.bench.sim.unloaded import Multiples, objectives, unloaded
from llm_runtime.core.request import TimeLimits
from llm_runtime.scheduling.config import SchedulingConfig

MODEL = ContinuousModel()
RATES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
OVERLOAD = 2.0
INPUT, OUTPUT, CAP = Uniform(12, 48), Uniform(8, 48), 64
MEAN = (30, 28)
"""Prompt and answer of the request whose unloaded values the objective is a multiple of."""
OBJECTIVE = Multiples(ttft=21.0)
TTFT_S = objectives(OBJECTIVE, unloaded(MODEL, *MEAN)).ttft_s or math.inf
SIM_S, WARMUP_S = 240.0, 60.0
PATIENCE = Patience(tries=3, mean_wait_s=12.0)
LEAST_WAIT_S = 1.0
"""Of which the error of what was told is judged."""

SEEDS, QUICK_SEEDS, PROCESSES = 40, 4, 2


def asks(seed: int, rate: float, seconds: float = SIM_S) -> list[Ask]:
    """Lengths of answers are the engine's secret: all are sent with one cap."""
    source = random.Random(f"overload:{seed}")
    at_s = 0.0
    found: list[Ask] = []
    limits = TimeLimits(request_s=TTFT_S, idle_s=None)
    while (at_s := at_s + source.expovariate(rate)) < seconds:
        found.append(
            Ask(
                number=len(found),
                at_s=at_s,
                prompt_tokens=INPUT.draw(source),
                output_tokens=OUTPUT.draw(source),
                max_tokens=CAP,
                limits=limits,
                measured=at_s >= WARMUP_S,
            )
        )
    return found


def capacity() -> float:
    """Requests per second of the model while somebody always waits."""
    pool = SimConfig((ReplicaConfig(MODEL),))
    load = [replace(each, at_s=0.0, limits=UNLIMITED) for each in asks(0, 8.0)]
    result = simulate(pool, OpenFeed(load), scheduled(SchedulingConfig()))
    return len(result.completed) / result.ended_at


def is_good(job: Job) -> bool:
    return (
        job.error is None and job.first_token_at is not None and job.first_token_at - job.ask.at_s <= TTFT_S
    )


def goodput(jobs: Iterable[Job]) -> float:
    return sum(is_good(job) for job in jobs) / (SIM_S - WARMUP_S)


def simulated(seed: int) -> Mapping[str, Figures]:
    pool, full = SimConfig((ReplicaConfig(MODEL),)), capacity()
    passed_on = SimConfig((ReplicaConfig(MODEL, in_flight=UNBOUNDED),))
    gated, open_ = scheduled(SchedulingConfig(), AdmissionConfig()), scheduled(SchedulingConfig())
    found: dict[str, Figures] = {}
    for rate in RATES:
        load = asks(seed, rate * full)
        found[f"{rate:g}"] = {"gate": goodput(simulate(pool, OpenFeed(load), gated, seed).measured())}
    load = asks(seed, OVERLOAD * full)
    found["no_gate"] = {"goodput": goodput(simulate(pool, OpenFeed(load), open_, seed).measured())}
    found["engine"] = {"goodput": goodput(simulate(passed_on, OpenFeed(load), open_, seed).measured())}
    load = [replace(each, limits=UNLIMITED) for each in load]
    found["fifo"] = {"goodput": goodput(simulate(pool, OpenFeed(load), open_, seed).measured())}
    feed = ReturningFeed(asks(seed, OVERLOAD * full), tries=PATIENCE.tries, wait_s=PATIENCE.wait_s)
    result = simulate(pool, feed, gated, seed, Truth(feed, TTFT_S))
    told = [each for each in feed.told if each.told_at >= WARMUP_S]
    returned = [each for each in told if each.returns and each.told_at + each.told_s < SIM_S]
    long = [each for each in told if LEAST_WAIT_S <= each.true_s < math.inf]
    errors = [abs(each.told_s / each.true_s - 1) for each in long]
    found["returning"] = {
        "goodput": sum(is_good(job) for job in result.measured()) / (SIM_S - WARMUP_S),
        "returned": len(returned),
        "let_in_share": sum(each.let_in for each in returned) / max(1, len(returned)),
        "told": len(told),
        "place_never_free": sum(each.true_s == math.inf for each in told),
        "waits_judged": len(errors),
        "median_error": statistics.median(errors) if errors else math.inf,
        "median_told_by_true": statistics.median(e.told_s / e.true_s for e in long) if long else math.inf,
    }
    return found


async def measure(quick: bool) -> Result:
    seeds = range(QUICK_SEEDS if quick else SEEDS)
    found = await asyncio.to_thread(over_seeds, simulated, seeds, processes=PROCESSES)
    swept = [{f"{rate:g}": seed[f"{rate:g}"]["gate"] for rate in RATES} for seed in found]
    means = {rate: statistics.fmean(seed[rate] for seed in swept) for rate in swept[0]}
    best = max(means, key=lambda rate: means[rate])
    at = f"{OVERLOAD:g}"
    spread = {
        "goodput_over_best": estimate([seed[at] / seed[best] for seed in swept]),
        **{
            f"{arm}_goodput_over_best": estimate(
                [seed[arm]["goodput"] / seed[best]["gate"] for seed in found]
            )
            for arm in ("no_gate", "engine", "fifo", "returning")
        },
        "let_in_share": estimate([seed["returning"]["let_in_share"] for seed in found]),
        "median_wait_error": estimate([seed["returning"]["median_error"] for seed in found]),
    }
    figures: dict[str, float | None] = {name: each.mean for name, each in spread.items()}
    details = {
        "capacity_per_s": capacity(),
        "best_rate": best,
        "figures": spread,
        "by_rate": estimates(found),
        "num_seeds": len(found),
    }
    return Result(figures, plain(details))


SCENARIO = Scenario(
    name="overload",
    question="Is goodput at twice the capacity as good as at the best rate, and is there room for who "
    "returns when told?",
    workload={
        "model": MODEL, "rates": RATES, "ttft_s": TTFT_S, "objective_of": MEAN,
        "input": INPUT, "output": OUTPUT, "cap": CAP,
        "sim_s": SIM_S, "warmup_s": WARMUP_S, "patience": PATIENCE, "least_wait_s": LEAST_WAIT_S,
        "seeds": SEEDS, "quick_seeds": QUICK_SEEDS,
    },
    bars=(
        Bar("goodput_over_best", ">=", 0.9),
        Bar("let_in_share", ">=", 0.9),
        Bar("median_wait_error", "<=", 0.3),
    ),
    run=measure,
    slos={"default": {"multiples_of_unloaded": OBJECTIVE}},
)  # fmt: skip
