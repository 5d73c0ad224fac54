"""How many sequences an engine should work on at once: found while serving, against every static cap.

Open loop above what the engine can carry, with clients that declare how long they wait for the first token
and a gate that refuses who would wait longer, in the arms of the limit and of the caps. Beside them, at all
slots and without a gate, FIFO, and the engine's own queue, to which everything is passed straight on; who has
waited too long leaves either. Goodput: first token and tokens in time.

An engine of 64 slots whose step is nearly flat up to 16 sequences and then grows faster than they do; half
way everything becomes twice as slow. Nobody tells the limit of either. In the simulator, over many seeds;
`adaptive-limit-engine` is the same question on the embedded engine.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections.abc import Mapping
from typing import Any

from llm_runtime.admission.config import AdmissionConfig
from llm_runtime.bench.lengths import Uniform
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.settings_json import plain
from llm_runtime.bench.sim.config import Change, ContinuousModel, ReplicaConfig, SimConfig
from llm_runtime.bench.sim.curve import through
from llm_runtime.bench.sim.feed import OpenFeed
from llm_runtime.bench.sim.job import Ask, Job
from llm_runtime.bench.sim.policies import Policies, scheduled
from llm_runtime.bench.sim.seeds import Figures, estimate, estimates, over_seeds
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.bench.sim.study import UNBOUNDED
from llm_runtime.bench.sim.unloaded import Multiples, objectives, unloaded
from llm_runtime.core.request import TimeLimits
from llm_runtime.runtime.decision import DecisionCore
from llm_runtime.scheduling.config import SchedulingConfig

SLOTS, KNEE = 64, 16
STEPS = through([(0, 0.0), (1, 0.020), (KNEE, 0.024), (32, 0.055), (SLOTS, 0.160)])
CAPS = (1, 2, 4, 8, 16, SLOTS)
INPUT, OUTPUT, CAP = Uniform(16, 64), Uniform(20, 80), 96
RATE = 16.0
MEAN = (40, 50)
"""Prompt and answer of the request whose unloaded values objectives are multiples of."""
OBJECTIVES = Multiples(ttft=500.0, tpot=4.0)
"""The first token of an idle engine is there within milliseconds; somebody who reads waits two seconds."""
SLOWED_AT_S, SLOWNESS, SIM_S = 90.0, 2.0, 170.0
WINDOWS = {"before": (30.0, SLOWED_AT_S), "after": (SLOWED_AT_S + 20.0, SIM_S)}
"""The limit is given 30 s to be found, and 20 s to be found again."""

SEEDS, QUICK_SEEDS, PROCESSES = 40, 3, 2


def model(num_slots: int) -> ContinuousModel:
    return ContinuousModel(num_slots, STEPS, prefill_s_per_token=0.0001, batch_tokens=512)


SLO = objectives(OBJECTIVES, unloaded(model(SLOTS), *MEAN))
TTFT_S, TPOT_S = SLO.ttft_s or math.inf, SLO.tpot_s or math.inf


def asks(seed: int) -> list[Ask]:
    source = random.Random(f"adaptive-limit:{seed}")
    at_s = 0.0
    found: list[Ask] = []
    limits = TimeLimits(request_s=TTFT_S, idle_s=None)
    while (at_s := at_s + source.expovariate(RATE)) < SIM_S:
        found.append(
            Ask(len(found), at_s, INPUT.draw(source), OUTPUT.draw(source), max_tokens=CAP, limits=limits)
        )
    return found


def engine(num_slots: int, in_flight: int | None = None) -> ReplicaConfig:
    """Of so many slots; how long a step takes does not depend on them."""
    return ReplicaConfig(model(num_slots), changes=(Change(SLOWED_AT_S, SLOWNESS),), in_flight=in_flight)


def is_good(job: Job) -> bool:
    first, last = job.first_token_at, job.last_token_at
    if job.error is not None or first is None or last is None:
        return False
    return first - job.ask.at_s <= TTFT_S and last - first <= TPOT_S * max(1, job.num_generated - 1)


class LimitLog:
    """Watches the limit in force; mean of it over a window."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def __call__(self, core: DecisionCore, now: float) -> None:
        self._seen.append((now, core.in_force("r0")))

    def mean(self, window: tuple[float, float]) -> float:
        return statistics.fmean(limit for at, limit in self._seen if window[0] <= at < window[1])


def simulated(seed: int) -> Mapping[str, Figures]:
    found: dict[str, Figures] = {}
    load, open_ = asks(seed), scheduled(SchedulingConfig())
    gated, adaptive = (
        scheduled(SchedulingConfig(adaptive_limit=each), AdmissionConfig()) for each in (False, True)
    )
    arms: dict[str, tuple[ReplicaConfig, Policies]] = {
        **{f"cap_{cap}": (engine(cap), gated) for cap in CAPS},
        "adaptive": (engine(SLOTS), adaptive),
        "fifo": (engine(SLOTS), open_),
        "engine": (engine(SLOTS, UNBOUNDED), open_),
    }
    for name, (replica, policies) in arms.items():
        log = LimitLog()
        result = simulate(SimConfig((replica,)), OpenFeed(load), policies, seed, log)
        figures: dict[str, float] = {}
        for window, (begin_s, end_s) in {**WINDOWS, "found_late": (0.0, WINDOWS["before"][0])}.items():
            jobs = [job for job in result.jobs if begin_s <= job.ask.at_s < end_s]
            figures[f"goodput_{window}"] = sum(is_good(job) for job in jobs) / (end_s - begin_s)
            if replica.in_flight is None:
                figures[f"limit_{window}"] = log.mean((begin_s, end_s))
        found[name] = figures
    return found


def judged(found: list[Mapping[str, Figures]]) -> tuple[dict[str, float | None], dict[str, Any]]:
    """By the cap that is best on average over the seeds, in each window."""
    figures: dict[str, float | None] = {}
    details: dict[str, Any] = {"arms": estimates(found)}
    for window in WINDOWS:
        key = f"goodput_{window}"
        means = {cap: statistics.fmean(seed[f"cap_{cap}"][key] for seed in found) for cap in CAPS}
        best = max(means, key=lambda cap: means[cap])
        ratio = estimate([seed["adaptive"][key] / seed[f"cap_{best}"][key] for seed in found])
        figures[f"goodput_over_best_cap_{window}"] = ratio.mean
        figures[f"loss_of_all_slots_{window}"] = 1 - means[SLOTS] / means[best]
        for arm in ("fifo", "engine"):
            by_best = estimate([seed[arm][key] / seed[f"cap_{best}"][key] for seed in found])
            figures[f"{arm}_over_best_cap_{window}"] = by_best.mean
        details[window] = {"best_cap": best, "goodput_over_best_cap": ratio}
    return figures, details


async def measure(quick: bool) -> Result:
    seeds = range(QUICK_SEEDS if quick else SEEDS)
    found = await asyncio.to_thread(over_seeds, simulated, seeds, processes=PROCESSES)
    figures, details = judged(found)
    return Result(figures, plain({**details, "num_seeds": len(found)}))


SCENARIO = Scenario(
    name="adaptive-limit",
    question="Does the adaptive limit, which nobody has configured, serve as many in time as the best static "
    "cap, and again 20 s after the engine became twice as slow?",
    workload={
        "slots": SLOTS, "steps": STEPS, "caps": CAPS, "input": INPUT, "output": OUTPUT, "cap": CAP,
        "rate": RATE, "ttft_s": TTFT_S, "tpot_s": TPOT_S, "objectives_of": MEAN,
        "slowed_at_s": SLOWED_AT_S, "slowness": SLOWNESS, "sim_s": SIM_S, "windows": WINDOWS,
        "seeds": SEEDS, "quick_seeds": QUICK_SEEDS,
    },
    bars=(
        Bar("goodput_over_best_cap_before", ">=", 0.95),
        Bar("goodput_over_best_cap_after", ">=", 0.95),
        Bar("loss_of_all_slots_before", ">=", 0.15),
        Bar("loss_of_all_slots_after", ">=", 0.15),
    ),
    run=measure,
    slos={"default": {"multiples_of_unloaded": OBJECTIVES}},
)  # fmt: skip
