"""What dynamic batching gives, and what it costs a client that is alone: the mock engine, one at a time
against batches, on real servers and in the simulator.

The mock takes 25 ms for a prefill and 10 ms for a step, once for a batch. Four tokens at 62 per second
are what one-at-a-time service gives then, so that is the length of an answer; with 8 tokens and batches
of 16 the limit is 1,219 tokens per second. The simulator is told one thing of the machine: the round trip,
which is what a request alone takes beyond the mock's own time.
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
TIMES = {"prefill_latency_ms": 1e3 * PREFILL_S, "decode_latency_ms": 1e3 * STEP_S}
Throughputs = Mapping[str, Mapping[int, float]]
"""Output tokens per second by mode and number of clients."""
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
    def alone_s(self) -> float:
        """What a request alone takes in the mock."""
        return PREFILL_S + self.output_tokens * STEP_S

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
    """requests of a run: at least min_requests, so many for each client, and enough for so many batches,
    because the batches at both ends of a run are not full and should weigh little."""

    rounds: int
    levels: tuple[int, ...]
    min_requests: int
    requests_per_client: int
    batches: int

    def requests(self, mode: Mode, level: int) -> int:
        full = min(mode.batch, level)
        return max(
            self.min_requests, self.requests_per_client * level, self.batches * full if full > 1 else 0
        )


FULL = Size(2, (1, 8, 16, 32, 64), 64, 2, 120)
QUICK = Size(1, (1, 8, 64), 64, 2, 0)


def plan_of(url: str, mode: Mode, level: int, size: Size, seed: int) -> Plan:
    traffic = TrafficClass(input_tokens=Fixed(16), output_tokens=Fixed(mode.output_tokens))
    limits = Limits(requests=size.requests(mode, level))
    return Plan(Target(url, ignore_eos=True), ClosedLoop(level), (traffic,), limits, seed=seed)


def simulated(mode: Mode, level: int, size: Size, round_trip_s: float) -> float:
    """Output tokens per second."""
    model = StaticModel(num_slots=mode.batch, step_s=constant(STEP_S), prefill_s=PREFILL_S)
    config = SimConfig((ReplicaConfig(model),), network_s=round_trip_s / 2)
    feed = PlanFeed(plan_of("http://simulated", mode, level, size, 0))
    result = simulate(config, feed, scheduled(mode.scheduling))
    throughput: float = result.summary()["output_throughput"]
    return throughput


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    real: dict[str, dict[int, list[float]]] = {name: {level: [] for level in size.levels} for name in MODES}
    round_trips_s: list[float] = []
    runs: list[dict[str, Any]] = []
    for number in range(size.rounds):
        names = list(MODES)
        for name in names if number % 2 == 0 else reversed(names):
            mode = MODES[name]
            async with launched(serve_command("mock", {**TIMES, **mode.settings}), {}) as url:
                for level in size.levels:
                    summary = summarise(await run(plan_of(url, mode, level, size, number)))
                    real[name][level].append(summary["output_throughput"])
                    if level == 1:
                        round_trips_s.append(summary["median_e2el_ms"] / 1e3 - mode.alone_s)
                    kept = {key: summary[key] for key in KEPT}
                    state = summary["verdict"]["state"]
                    runs.append({"mode": name, "level": level, "round": number, "verdict": state, **kept})
    medians = {
        name: {level: statistics.median(values) for level, values in levels.items()}
        for name, levels in real.items()
    }
    round_trip_s = max(0.0, statistics.median(round_trips_s))
    model = {
        name: {level: simulated(mode, level, size, round_trip_s) for level in size.levels}
        for name, mode in MODES.items()
    }
    figures = figures_of(medians, model)
    figures["round_trip_ms"] = 1e3 * round_trip_s
    figures["failed"] = sum(each["failed"] for each in runs)
    return Result(figures, {"tokens_per_s": medians, "simulated_tokens_per_s": model, "runs": runs})


def figures_of(real: Throughputs, model: Throughputs) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for name, fifo in COUNTERPART.items():
        for level in real[name]:
            figures[f"gain_{name}_{level}"] = real[name][level] / real[fifo][level]
    figures["tokens_per_s_fifo_64"] = real["fifo"][64]
    figures["tokens_per_s_batch_8_64"] = real["batch_8"][64]
    figures["tokens_per_s_batch_16_64"] = real["batch_16_long"][64]
    errors = [abs(model[name][level] / value - 1) for name in MODES for level, value in real[name].items()]
    figures["worst_model_error"] = max(errors)
    figures["mean_model_error"] = statistics.fmean(errors)
    return figures


SCENARIO = Scenario(
    name="batching",
    question="Does dynamic batching on the mock engine give at least what others published at 64 clients, "
    "lose nothing for a single client, and does the simulator foresee it?",
    workload={
        "prefill_s": PREFILL_S, "step_s": STEP_S, "modes": MODES,
        "full": FULL, "quick": QUICK,
    },
    bars=(
        Bar("gain_batch_8_1", ">=", 0.99),
        Bar("gain_batch_16_long_1", ">=", 0.99),
        Bar("gain_batch_8_8", ">=", 6.0, quick=False),
        Bar("tokens_per_s_batch_8_64", ">=", 485.0, quick=False),
        Bar("tokens_per_s_batch_16_64", ">=", 1125.0, quick=False),
        Bar("worst_model_error", "<=", 0.05, quick=False),
        Bar("failed", "<=", 0.0),
    ),
    run=measure,
)  # fmt: skip
