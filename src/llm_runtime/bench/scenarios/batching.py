"""What dynamic batching gives, and what it costs a client that is alone: the mock engine, one at a time
against batches, on real servers and in the simulator.

The mock takes 25 ms for a prefill and 10 ms for a step, once for a batch. Four tokens at 62 per second
are what one-at-a-time service gives then, so that is the length of an answer; with 8 tokens and batches
of 16 the limit is 1,219 tokens per second.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.launch import launched
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.serve_command import serve_command
from llm_runtime.bench.sim.config import ReplicaConfig, SimConfig, StaticModel
from llm_runtime.bench.sim.curve import constant
from llm_runtime.bench.sim.feed import PlanFeed
from llm_runtime.bench.sim.policies import scheduled
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.bench.summary import summarise
from llm_runtime.scheduling.config import SchedulingConfig

PREFILL_S, STEP_S = 0.025, 0.010
LEVELS = (1, 8, 16, 32, 64)
ROUND_TRIP_S = 0.001
KEPT = ("output_throughput", "mean_ttft_ms", "mean_e2el_ms", "p95_e2el_ms", "completed", "failed", "duration")


@dataclass(frozen=True, slots=True)
class Mode:
    """batch: 1 is one at a time."""

    batch: int
    window_ms: float
    output_tokens: int

    @property
    def settings(self) -> Mapping[str, object]:
        return {
            "enable_batching": self.batch > 1,
            "max_batch_size": self.batch,
            "batch_timeout_ms": self.window_ms,
        }

    @property
    def scheduling(self) -> SchedulingConfig:
        return SchedulingConfig(
            enable_batching=self.batch > 1, max_batch_size=self.batch, batch_timeout_ms=self.window_ms
        )


MODES: Mapping[str, Mode] = {
    "fifo": Mode(1, 0.0, 4),
    "batch_8": Mode(8, 10.0, 4),
    "fifo_long": Mode(1, 0.0, 8),
    "batch_16_long": Mode(16, 20.0, 8),
}
COUNTERPART = {"batch_8": "fifo", "batch_16_long": "fifo_long"}


@dataclass(frozen=True, slots=True)
class Size:
    """requests: at least so many of a run, and so many for each client."""

    rounds: int
    min_requests: int
    requests_per_client: int


FULL = Size(3, 64, 4)
QUICK = Size(1, 24, 2)


def plan_of(url: str, mode: Mode, level: int, size: Size, seed: int) -> Plan:
    traffic = TrafficClass(input_tokens=Fixed(16), output_tokens=Fixed(mode.output_tokens))
    requests = max(size.min_requests, size.requests_per_client * level)
    return Plan(
        Target(url, ignore_eos=True), ClosedLoop(level), (traffic,), Limits(requests=requests), seed=seed
    )


def simulated(mode: Mode, level: int, size: Size) -> float:
    """Output tokens per second."""
    model = StaticModel(num_slots=mode.batch, step_s=constant(STEP_S), prefill_s=PREFILL_S)
    config = SimConfig((ReplicaConfig(model),), network_s=ROUND_TRIP_S / 2)
    feed = PlanFeed(plan_of("http://simulated", mode, level, size, 0))
    result = simulate(config, feed, scheduled(mode.scheduling))
    throughput: float = result.summary()["output_throughput"]
    return throughput


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    real: dict[str, dict[int, list[float]]] = {mode: {level: [] for level in LEVELS} for mode in MODES}
    runs: list[dict[str, Any]] = []
    for number in range(size.rounds):
        order = list(MODES) if number % 2 == 0 else list(reversed(MODES))
        for name in order:
            settings = {"prefill_latency_ms": 1e3 * PREFILL_S, "decode_latency_ms": 1e3 * STEP_S}
            async with launched(serve_command("mock", {**settings, **MODES[name].settings}), {}) as url:
                for level in LEVELS:
                    summary = summarise(await run(plan_of(url, MODES[name], level, size, number)))
                    real[name][level].append(summary["output_throughput"])
                    kept = {key: summary[key] for key in KEPT}
                    runs.append({"mode": name, "level": level, "round": number,
                                 "verdict": summary["verdict"]["state"], **kept})  # fmt: skip
    medians = {
        name: {level: statistics.median(values) for level, values in levels.items()}
        for name, levels in real.items()
    }
    model = {name: {level: simulated(mode, level, size) for level in LEVELS} for name, mode in MODES.items()}
    figures = figures_of(medians, model)
    figures["failed"] = sum(each["failed"] for each in runs)
    return Result(figures, {"tokens_per_s": medians, "simulated_tokens_per_s": model, "runs": runs})


def figures_of(
    real: Mapping[str, Mapping[int, float]], model: Mapping[str, Mapping[int, float]]
) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for name, fifo in COUNTERPART.items():
        for level in LEVELS:
            figures[f"gain_{name}_{level}"] = real[name][level] / real[fifo][level]
    figures["tokens_per_s_fifo_64"] = real["fifo"][64]
    figures["tokens_per_s_batch_8_64"] = real["batch_8"][64]
    figures["tokens_per_s_batch_16_64"] = real["batch_16_long"][64]
    errors = [abs(model[name][level] / real[name][level] - 1) for name in MODES for level in LEVELS]
    figures["worst_model_error"] = max(errors)
    figures["mean_model_error"] = statistics.fmean(errors)
    return figures


SCENARIO = Scenario(
    name="batching",
    question="Does dynamic batching on the mock engine give at least what others published at 64 clients, "
    "lose nothing for a single client, and does the simulator foresee it?",
    workload={
        "prefill_s": PREFILL_S, "step_s": STEP_S, "levels": LEVELS, "modes": MODES,
        "round_trip_s": ROUND_TRIP_S, "full": FULL, "quick": QUICK,
    },
    bars=(
        Bar("gain_batch_8_1", ">=", 0.99),
        Bar("gain_batch_16_long_1", ">=", 0.99),
        Bar("gain_batch_8_8", ">=", 6.0),
        Bar("tokens_per_s_batch_8_64", ">=", 485.0, quick=False),
        Bar("tokens_per_s_batch_16_64", ">=", 1125.0, quick=False),
        Bar("worst_model_error", "<=", 0.05),
        Bar("failed", "<=", 0.0),
    ),
    run=measure,
)  # fmt: skip
