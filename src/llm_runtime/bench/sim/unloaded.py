"""What a request takes on an engine that does nothing else: the measure of objectives.

An objective in seconds means little on another machine; a multiple of the unloaded value means the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_runtime.bench.config import Slo
from llm_runtime.bench.sim.config import EngineModel, ReplicaConfig, SimConfig
from llm_runtime.bench.sim.feed import OpenFeed
from llm_runtime.bench.sim.job import Ask
from llm_runtime.bench.sim.policies import scheduled
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.scheduling.config import SchedulingConfig


@dataclass(frozen=True, slots=True)
class Unloaded:
    """Seconds; tpot_s: 0 for a single token."""

    ttft_s: float
    e2e_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Multiples:
    """Objectives as multiples of unloaded values; None: no such objective."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None


def unloaded(model: EngineModel, prompt_tokens: int, output_tokens: int) -> Unloaded:
    ask = Ask(0, 0.0, prompt_tokens, output_tokens, output_tokens)
    policies = scheduled(SchedulingConfig(enable_batching=False))
    (job,) = simulate(SimConfig((ReplicaConfig(model),)), OpenFeed([ask]), policies).jobs
    assert job.first_token_at is not None
    assert job.finished_at is not None
    decode_s = job.finished_at - job.first_token_at
    return Unloaded(job.first_token_at, job.finished_at, decode_s / max(1, output_tokens - 1))


def objectives(multiples: Multiples, alone: Unloaded) -> Slo:
    def scaled(multiple: float | None, value_s: float) -> float | None:
        return None if multiple is None else multiple * value_s

    return Slo(
        ttft_s=scaled(multiples.ttft, alone.ttft_s),
        tpot_s=scaled(multiples.tpot, alone.tpot_s),
        e2e_s=scaled(multiples.e2e, alone.e2e_s),
    )
