"""Asks, and short ways to simulate them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_runtime.bench.sim.config import ContinuousModel, EngineModel, ReplicaConfig, SimConfig, StaticModel
from llm_runtime.bench.sim.curve import constant, line
from llm_runtime.bench.sim.feed import OpenFeed
from llm_runtime.bench.sim.job import Ask, Job
from llm_runtime.bench.sim.policies import Policies, scheduled
from llm_runtime.bench.sim.result import SimResult
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.scheduling.config import SchedulingConfig

MOCK = StaticModel(num_slots=4, step_s=constant(0.010), prefill_s=0.025)
ONE_AT_A_TIME = StaticModel(num_slots=1, step_s=constant(0.010), prefill_s=0.0)
SIXTEENTHS = ContinuousModel(
    num_slots=8, step_s=line(0.0625, 0.0), prefill_s_per_token=0.0625, batch_tokens=4
)
"""Instants that are sums of sixteenths are exact in binary."""


def ask(number: int, at_s: float = 0.0, *, prompt: int = 10, output: int = 4, **fields: Any) -> Ask:
    fields.setdefault("max_tokens", output)
    return Ask(number, at_s, prompt, output, **fields)


def job(number: int = 0, **fields: Any) -> Job:
    """One that no simulation knows of, for engines alone."""
    asked = ask(number, **fields)
    request = RuntimeRequest(
        id=str(number), model="m", kind=EndpointKind.CHAT, body={}, arrived_at=0.0, created=0
    )
    return Job(asked, request)


def run_of(
    asks: Sequence[Ask], *models: EngineModel, policies: Policies | None = None, **config: Any
) -> SimResult:
    replicas = tuple(ReplicaConfig(model) for model in models)
    config.setdefault("replicas", replicas)
    return simulate(SimConfig(**config), OpenFeed(asks), policies or fifo())


def fifo(**config: Any) -> Policies:
    return scheduled(SchedulingConfig(policy="fifo", **config))


def ends(result: SimResult) -> dict[int, float | None]:
    return {job.ask.number: job.finished_at for job in result.jobs}


def reasons(result: SimResult) -> dict[int, str | None]:
    return {job.ask.number: None if job.error is None else job.error.reason for job in result.jobs}
