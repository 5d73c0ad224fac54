"""Eight urgent requests meet a queue of 24 others: what FIFO, strict priority and ageing make of it.

The mock engine runs batches of four that take 65 ms. At t = 0 there come 24 requests of low priority,
40 ms later 8 of high priority. Beside what the policies do stands what could be done at best by anybody
who cannot interrupt a batch: the least mean wait of the urgent ones for a given worst wait of the others,
found by trying every composition of the batches. No bar: so few requests show a mechanism, no quality.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_runtime.bench import metrics
from llm_runtime.bench.config import Target, TrafficClass
from llm_runtime.bench.given import GivenSessions, given_plan, play, play_on_time
from llm_runtime.bench.launch import launched
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.records import RequestRecord
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.serve_command import serve_command
from llm_runtime.bench.sim.config import ReplicaConfig, SimConfig, StaticModel
from llm_runtime.bench.sim.curve import constant
from llm_runtime.bench.sim.fairness import jain, starved_share
from llm_runtime.bench.sim.feed import PlanFeed
from llm_runtime.bench.sim.policies import scheduled
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.bench.workload import Session, Turn
from llm_runtime.scheduling.config import Preset, SchedulingConfig

PREFILL_S, STEP_S, TOKENS, BATCH = 0.025, 0.010, 4, 4
BATCH_S = PREFILL_S + TOKENS * STEP_S
NUM_LOW, NUM_HIGH, HIGH_AT_S = 24, 8, 0.040
LOW, HIGH = 8, 2
TTFT_BUDGET_S = 6.5 * BATCH_S
"""Of low requests: beyond it they count as starved. One batch of the seven that FIFO needs for them is."""
WAIT_LIMITS = (1.0, 1.25, 1.5)
"""Worst waits of the low class, by FIFO's, for which the best is computed."""


@dataclass(frozen=True, slots=True)
class Arm:
    """aging_s: seconds of waiting that are worth one level; None: strict, or FIFO."""

    policy: Preset
    aging_s: float | None = None

    @property
    def scheduling(self) -> SchedulingConfig:
        return SchedulingConfig(
            policy=self.policy, max_batch_size=BATCH, priority_aging_boost_interval_s=self.aging_s
        )

    @property
    def settings(self) -> Mapping[str, object]:
        settings: dict[str, object] = {
            "scheduler": self.policy,
            "max_batch_size": BATCH,
            "prefill_latency_ms": 1e3 * PREFILL_S,
            "decode_latency_ms": 1e3 * STEP_S,
        }
        if self.aging_s is not None:
            settings["priority_aging_boost_interval_s"] = self.aging_s
        return settings


ARMS: Mapping[str, Arm] = {
    "fifo": Arm("fifo"),
    "strict": Arm("priority"),
    "aging": Arm("priority", 0.05),
    "fast_aging": Arm("priority", 0.005),
}
"""Six levels lie between the classes: a low request cannot be overtaken by one that comes 0.3 s after it,
with fast ageing 0.03 s, which is less than the 40 ms here."""


def sessions() -> list[Session]:
    low = TrafficClass("low", output_tokens=Fixed(TOKENS), priority=LOW)
    high = TrafficClass("high", output_tokens=Fixed(TOKENS), priority=HIGH)
    due = [(low, 0.0)] * NUM_LOW + [(high, HIGH_AT_S)] * NUM_HIGH
    return [Session(number, each, (Turn(16, TOKENS),), at_s) for number, (each, at_s) in enumerate(due)]


def ttfts_s(records: Iterable[RequestRecord], traffic: str) -> list[float]:
    return [ttft for r in records if r.traffic == traffic and (ttft := metrics.ttft_s(r)) is not None]


def figures_of(records: Sequence[RequestRecord]) -> dict[str, float | None]:
    """ms; jain: of the rates at which requests were served, tokens by E2E."""
    high, low = ttfts_s(records, "high"), ttfts_s(records, "low")
    rates = [TOKENS / e2e for record in records if (e2e := metrics.e2e_s(record))]
    return {
        "high_mean_ttft_ms": 1e3 * statistics.fmean(high),
        "low_mean_ttft_ms": 1e3 * statistics.fmean(low),
        "low_worst_ttft_ms": 1e3 * max(low),
        "jain": jain(rates),
        "low_starved_share": starved_share(low, TTFT_BUDGET_S),
    }


def best(worst_wait_factor: float, first_batch: int) -> float:
    """The least mean TTFT of the high class in ms, if no low request waits longer than that many times
    FIFO's longest. first_batch: low requests that start at once; nobody can know better at t = 0."""
    rest = NUM_LOW + NUM_HIGH - first_batch
    sizes = [min(BATCH, rest - begun) for begun in range(0, rest, BATCH)]
    fifo_last = 1 + (NUM_LOW - first_batch - 1) // BATCH  # number of the batch of FIFO's last low request
    latest = worst_wait_factor * (fifo_last * BATCH_S)
    found = []
    for highs in itertools.product(*(range(size + 1) for size in sizes)):
        if sum(highs) != NUM_HIGH:
            continue
        last = max(index for index, (size, num) in enumerate(zip(sizes, highs, strict=True), 1) if num < size)
        if last * BATCH_S <= latest + 1e-9:
            starts = sum(num * index for index, num in enumerate(highs, 1)) * BATCH_S / NUM_HIGH
            found.append(starts + PREFILL_S + STEP_S - HIGH_AT_S)
    return 1e3 * min(found)


def simulated(arm: Arm) -> list[RequestRecord]:
    model = StaticModel(num_slots=BATCH, step_s=constant(STEP_S), prefill_s=PREFILL_S)
    given = sessions()
    feed = PlanFeed(given_plan(Target("http://simulated"), given), GivenSessions(given))
    return simulate(SimConfig((ReplicaConfig(model),)), feed, scheduled(arm.scheduling)).records


async def measure(quick: bool) -> Result:
    rounds = 1 if quick else 5
    given = sessions()
    found: dict[str, list[dict[str, float | None]]] = {name: [] for name in ARMS}
    low_ttfts_ms: dict[str, list[list[float]]] = {name: [] for name in ARMS}
    num_failed = 0
    for number in range(rounds):
        names = list(ARMS)
        for name in names if number % 2 == 0 else reversed(names):
            async with launched(serve_command("mock", ARMS[name].settings), {}) as url:
                target = Target(url, ignore_eos=True)
                await play(given_plan(target, given[:1]), given[:1])  # opens what is opened once
                records = await play_on_time(given_plan(target, given), given)
            num_failed += len(records) - len(metrics.completed(records))
            found[name].append(figures_of(records))
            low_ttfts_ms[name].append([1e3 * ttft_s for ttft_s in ttfts_s(records, "low")])
    figures: dict[str, float | None] = {}
    for name, each in found.items():
        for figure in each[0]:
            values = [one[figure] for one in each]
            figures[f"{name}_{figure}"] = statistics.median(value for value in values if value is not None)
    models = {name: figures_of(simulated(arm)) for name, arm in ARMS.items()}
    for factor in WAIT_LIMITS:
        figures[f"best_high_mean_ttft_ms_at_{factor:g}"] = best(factor, 1)
    figures["worst_model_error"] = max(
        abs((models[name][key] or 0.0) / (figures[f"{name}_{key}"] or 1.0) - 1)
        for name in ARMS
        for key in ("high_mean_ttft_ms", "low_mean_ttft_ms", "low_worst_ttft_ms")
    )
    figures["failed"] = num_failed
    details: dict[str, Any] = {
        "simulated": models,
        "rounds": found,
        "low_ttfts_ms": low_ttfts_ms,
        "high_mean_ttft_below_fifo": {
            name: 1 - (model["high_mean_ttft_ms"] or 0.0) / (models["fifo"]["high_mean_ttft_ms"] or 1.0)
            for name, model in models.items()
        },
        "low_worst_ttft_by_fifo": {
            name: (model["low_worst_ttft_ms"] or 0.0) / (models["fifo"]["low_worst_ttft_ms"] or 1.0)
            for name, model in models.items()
        },
    }
    return Result(figures, details)


SCENARIO = Scenario(
    name="priority",
    question="What do strict priority and ageing gain for 8 urgent requests behind 24 others, what does it "
    "cost those, and how far is it from the best that can be done?",
    workload={
        "prefill_s": PREFILL_S, "step_s": STEP_S, "output_tokens": TOKENS, "batch": BATCH,
        "num_low": NUM_LOW, "num_high": NUM_HIGH, "high_at_s": HIGH_AT_S,
        "priorities": {"low": LOW, "high": HIGH}, "ttft_budget_s": TTFT_BUDGET_S, "arms": ARMS,
    },
    bars=(Bar("worst_model_error", "<=", 0.10, quick=False), Bar("failed", "<=", 0.0)),
    run=measure,
)  # fmt: skip
