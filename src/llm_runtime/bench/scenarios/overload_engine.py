"""`overload`, smaller, on the embedded engine, and what a refusal costs on the mock engine.

Three paired rounds of all rates; then the same with clients that come back when they were told to. Beside it
a server whose clients declare nothing, which is FIFO without a gate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_runtime.bench.config import TrafficClass
from llm_runtime.bench.goodput import Load, capacity, goodput
from llm_runtime.bench.launch import launched
from llm_runtime.bench.lengths import Uniform
from llm_runtime.bench.returning import Patience, Try
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.serve_command import serve_command

TRAFFIC = TrafficClass(input_tokens=Uniform(8, 24), output_tokens=Uniform(8, 24))
REAL_RATES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
REAL_SLOTS, REAL_CONTEXT = 8, 512
REAL_TTFT_S = 3.0
CAPACITY_REQUESTS = 40
MOCK_RATE, MOCK_QUEUE = 120.0, 16


OVERLOAD = 2.0
PATIENCE = Patience(tries=3, mean_wait_s=12.0)


@dataclass(frozen=True, slots=True)
class Size:
    """rounds: each of all rates for load_s, of which warmup_s are not counted. mock_s: of the load on the
    mock engine."""

    rounds: int
    load_s: float
    warmup_s: float
    mock_s: float


FULL = Size(rounds=3, load_s=14.0, warmup_s=3.0, mock_s=30.0)
QUICK = Size(rounds=1, load_s=6.0, warmup_s=1.0, mock_s=10.0)


async def embedded(size: Size) -> tuple[dict[str, float | None], dict[str, Any]]:
    settings: dict[str, object] = {"native_backend_concurrency": REAL_SLOTS, "n_ctx": REAL_CONTEXT}
    gated = serve_command("llama.cpp", {**settings, "request_timeout_s": REAL_TTFT_S})
    load = Load(TRAFFIC, size.load_s, size.warmup_s, REAL_TTFT_S)
    rounds: list[dict[str, Any]] = []
    async with launched(serve_command("llama.cpp", settings), {}, "/health/ready") as fifo_url:
        full = await capacity(fifo_url, TRAFFIC, CAPACITY_REQUESTS)
        fifo = [await goodput(fifo_url, load, OVERLOAD * full, seed) for seed in range(size.rounds)]
    async with launched(gated, {}, "/health/ready") as url:
        await capacity(url, TRAFFIC, CAPACITY_REQUESTS)  # before anything was measured nothing is refused
        for number in range(size.rounds):
            rates = REAL_RATES if number % 2 == 0 else REAL_RATES[::-1]
            goodputs = {f"{rate:g}": (await goodput(url, load, rate * full, number))[0] for rate in rates}
            good, tries = await goodput(url, load, OVERLOAD * full, number, PATIENCE)
            rounds.append({"goodput": goodputs, "returning": good, **returns_of(tries)})
    by_rate = {
        f"{rate:g}": statistics.fmean(each["goodput"][f"{rate:g}"] for each in rounds) for rate in REAL_RATES
    }
    returned, let_in = (sum(each[key] for each in rounds) for key in ("returned", "let_in"))
    figures: dict[str, float | None] = {
        "embedded_goodput_over_best": by_rate[f"{OVERLOAD:g}"] / max(by_rate.values()),
        "embedded_let_in_share": let_in / returned if returned else None,
        "embedded_fifo_goodput_over_best": statistics.fmean(g for g, _ in fifo) / max(by_rate.values()),
    }
    return figures, {"capacity_per_s": full, "goodput_per_s": by_rate, "rounds": rounds}


def returns_of(tries: Sequence[Try]) -> dict[str, int]:
    returned = [each for each in tries if each.attempt]
    return {
        "refused": sum(each.told_s is not None for each in tries),
        "returned": len(returned),
        "let_in": sum(each.told_s is None for each in returned),
    }


async def refusals(size: Size) -> tuple[dict[str, float | None], dict[str, Any]]:
    """As the client sees them, which is more than from headers read to bytes written."""
    async with launched(serve_command("mock", {"max_queue_size": MOCK_QUEUE}), {}, "/health/ready") as url:
        load = Load(TRAFFIC, size.mock_s, 0.0, REAL_TTFT_S)
        _, tries = await goodput(url, load, MOCK_RATE, 0)
    took = sorted(each.answered_s for each in tries if each.answered_s is not None)
    figures: dict[str, float | None] = {
        "refusal_p99_ms": 1e3 * took[math.ceil(0.99 * len(took)) - 1] if len(took) >= 100 else None
    }
    return figures, {
        "refused": len(took),
        "sent": len(tries),
        "median_ms": 1e3 * statistics.median(took) if took else None,
    }


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    real, real_details = await embedded(size)
    mock, mock_details = await refusals(size)
    return Result({**real, **mock}, {"embedded": real_details, "mock": mock_details})


SCENARIO = Scenario(
    name="overload-engine",
    question="Does the embedded engine serve as many in time at twice its capacity as at the best rate, are "
    "refusals quick, and is there room for who returns when told?",
    workload={
        "traffic": TRAFFIC, "rates": REAL_RATES, "overload": OVERLOAD,
        "slots": REAL_SLOTS, "context_tokens": REAL_CONTEXT, "ttft_s": REAL_TTFT_S,
        "capacity_requests": CAPACITY_REQUESTS, "mock_rate": MOCK_RATE, "mock_queue": MOCK_QUEUE,
        "patience": PATIENCE, "full": FULL, "quick": QUICK,
    },
    bars=(
        Bar("refusal_p99_ms", "<=", 5.0),
        Bar("embedded_goodput_over_best", ">=", 0.9, quick=False),
        Bar("embedded_let_in_share", ">=", 0.9, quick=False),
    ),
    run=measure,
    slos={"default": {"ttft_s": REAL_TTFT_S}},
)  # fmt: skip
