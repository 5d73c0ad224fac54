"""Policies side by side: the same requests, seed by seed, through each of several arms.

What is drawn knows no engine: its instants are in units of the time a saturated engine needs for one of
the requests, so the same requests put the same load on a simulated engine and on a real one, however fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from llm_runtime.bench.sim.config import ContinuousModel, ReplicaConfig, SimConfig
from llm_runtime.bench.sim.feed import OpenFeed
from llm_runtime.bench.sim.job import Ask, Job
from llm_runtime.bench.sim.policies import Policies, scheduled
from llm_runtime.bench.sim.seeds import Figures, estimates
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.bench.sim.unloaded import Unloaded, unloaded
from llm_runtime.core.request import TimeLimits
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.history import PredictTokens
from llm_runtime.scheduling.presets import build_scheduler

UNBOUNDED = 1 << 20
UNIT_SEED = 2**31

Guess = Callable[[Sequence[Ask]], PredictTokens]
"""Lengths of answers as a predictor would have them that is not learnt."""


@dataclass(frozen=True, slots=True)
class Arm:
    """scheduling: None passes everything straight on to the engine's own queue. guess: replaces the learnt
    lengths of answers, in the simulator only. only: classes of traffic that come at all; none: all."""

    scheduling: SchedulingConfig | None = None
    guess: Guess | None = None
    only: tuple[str, ...] = ()

    def asked(self, asks: Sequence[Ask]) -> list[Ask]:
        return [ask for ask in asks if not self.only or ask.traffic in self.only]

    def policies(self, asks: Sequence[Ask]) -> Policies:
        config = self.scheduling or SchedulingConfig()
        if self.guess is None:
            return scheduled(config)
        return Policies(partial(build_scheduler, config, predict=self.guess(asks)))


ENGINE = Arm()
FIFO = Arm(SchedulingConfig())


@dataclass(frozen=True, slots=True)
class Workload:
    """draw: requests of a seed, of so many times the whole size, in order, instants in units. reference:
    lengths of the request whose unloaded values objectives are multiples of. unit_of: the class whose
    requests the unit is made of; None: all."""

    draw: Callable[[int, float], list[Ask]]
    reference: tuple[int, int]
    unit_of: str | None = None

    def together(self, size: float) -> list[Ask]:
        """What the unit is measured with: everything due at once."""
        asks = self.draw(UNIT_SEED, size)
        return [replace(ask, at_s=0.0) for ask in asks if self.unit_of in (None, ask.traffic)]


@dataclass(frozen=True, slots=True)
class Engine:
    """What a workload has to know of the engine it is put on. unit_s: of a `Workload`."""

    unit_s: float
    alone: Unloaded


FiguresOf = Callable[[Sequence[Job], Unloaded], Figures]


@dataclass(frozen=True, slots=True)
class Study:
    """figures_of: of the jobs of one arm and seed, in any order. declared: by class of traffic, how long its
    clients say that they wait for the first token, in multiples of the unloaded one. may_fail: whether
    policies may leave requests unanswered; where they may not, a failure is an error of the measurement."""

    workload: Workload
    arms: Mapping[str, Arm]
    figures_of: FiguresOf
    declared: Mapping[str, float] = field(default_factory=dict)
    may_fail: bool = False

    def engine(self, model: ContinuousModel, size: float = 1.0) -> Engine:
        asks = self.workload.together(size)
        result = simulate(SimConfig((ReplicaConfig(model),)), OpenFeed(asks), scheduled(SchedulingConfig()))
        return Engine(result.ended_at / len(asks), unloaded(model, *self.workload.reference))

    def asks(self, engine: Engine, seed: int, size: float) -> list[Ask]:
        """What is sent: instants in seconds, and with the limits that clients declare."""
        drawn = stretched(self.workload.draw(seed, size), engine.unit_s)
        return [
            replace(ask, limits=TimeLimits(request_s=multiple * engine.alone.ttft_s, idle_s=None))
            if (multiple := self.declared.get(ask.traffic)) is not None
            else ask
            for ask in drawn
        ]

    def simulated(
        self, model: ContinuousModel, engine: Engine, seed: int, size: float = 1.0
    ) -> dict[str, Figures]:
        """Figures by arm, of one seed. engine: what `engine` says of the model."""
        drawn = self.asks(engine, seed, size)
        found = {}
        for name, arm in self.arms.items():
            asks = arm.asked(drawn)
            config = SimConfig((ReplicaConfig(model, in_flight=None if arm.scheduling else UNBOUNDED),))
            jobs = simulate(config, OpenFeed(asks), arm.policies(asks), seed).jobs
            if arm.scheduling is None:
                for job in jobs:
                    job.dispatched_at = job.first_token_at  # nobody outside can tell when its turn came
            found[name] = self.figures_of(jobs, engine.alone)
        return found


async def over_seeds(
    study: Study, model: ContinuousModel, seeds: Sequence[int], size: float = 1.0
) -> list[dict[str, Figures]]:
    """In a thread, because it takes seconds and is nothing but computing."""

    def simulated() -> list[dict[str, Figures]]:
        engine = study.engine(model, size)
        return [study.simulated(model, engine, seed, size) for seed in seeds]

    return await asyncio.to_thread(simulated)


def stretched(asks: Sequence[Ask], unit_s: float) -> list[Ask]:
    return [replace(ask, at_s=ask.at_s * unit_s) for ask in asks]


def details(found: Sequence[Mapping[str, Figures]]) -> dict[str, Any]:
    """Means and intervals over seeds, by arm and figure, as JSON."""
    return {
        arm: {figure: asdict(estimate) for figure, estimate in figures.items()}
        for arm, figures in estimates(found).items()
    }


def of(jobs: Sequence[Job], traffic: str) -> list[Job]:
    return [job for job in jobs if job.ask.traffic == traffic]


def ttft_s(job: Job) -> float:
    """From the instant it was due; infinite if nothing ever came."""
    return float("inf") if job.first_token_at is None else job.first_token_at - job.ask.at_s


def e2e_s(job: Job) -> float:
    """From the instant it was due; infinite for a failure."""
    if job.error is not None or job.finished_at is None:
        return float("inf")
    return job.finished_at - job.ask.at_s


def makespan_s(jobs: Sequence[Job]) -> float:
    """From the first instant due to the last end; infinite when one has failed."""
    return max(job.ask.at_s + e2e_s(job) for job in jobs) - min(job.ask.at_s for job in jobs)


def percentile(sample: Sequence[float], percent: float) -> float:
    """Linear between order statistics. Raises ValueError without values."""
    if not sample:
        raise ValueError("no values")
    ordered = sorted(sample)
    position = percent / 100 * (len(ordered) - 1)
    below = int(position)
    if below == position:
        return ordered[below]
    return ordered[below] + (position - below) * (ordered[below + 1] - ordered[below])
