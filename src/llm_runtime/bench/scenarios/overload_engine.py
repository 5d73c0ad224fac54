"""`overload`, smaller, on the embedded engine, and what a refusal costs on the mock engine.

Three paired rounds of all rates, then a longer load of clients that come back when they were told to. Beside
it a server whose clients declare nothing, which is FIFO without a gate. How fast the engine is today is
measured first: times are multiples of what one request takes of it when it is full, as in `overload`.
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
TTFT_UNITS = 12.0
CAPACITY_REQUESTS = 40
MOCK_RATE, MOCK_QUEUE, MOCK_TTFT_S = 120.0, 16, 3.0


OVERLOAD = 2.0
TRIES, PATIENCE_UNITS = 3, 46.0


@dataclass(frozen=True, slots=True)
class Size:
    """rounds: each of all rates for load_units, of which warmup_units are not counted, and of clients that
    return for return_units, of which return_warmup_units are not. mock_s: of the load on the mock engine."""

    rounds: int
    load_units: float
    warmup_units: float
    return_units: float
    return_warmup_units: float
    mock_s: float


FULL = Size(rounds=3, load_units=40, warmup_units=8, return_units=110, return_warmup_units=24, mock_s=30.0)
QUICK = Size(rounds=1, load_units=12, warmup_units=2, return_units=20, return_warmup_units=4, mock_s=10.0)


async def embedded(size: Size) -> tuple[dict[str, float | None], dict[str, Any]]:
    settings: dict[str, object] = {"native_backend_concurrency": REAL_SLOTS, "n_ctx": REAL_CONTEXT}
    rounds: list[dict[str, Any]] = []
    async with launched(serve_command("llama.cpp", settings), {}, "/health/ready") as fifo_url:
        full = await capacity(fifo_url, TRAFFIC, CAPACITY_REQUESTS)
        load = _load(full, size.load_units, size.warmup_units)
        fifo = [await goodput(fifo_url, load, OVERLOAD * full, seed) for seed in range(size.rounds)]
    returning = _load(full, size.return_units, size.return_warmup_units)
    patience = Patience(TRIES, PATIENCE_UNITS / full)
    gated = serve_command("llama.cpp", {**settings, "request_timeout_s": load.ttft_s})
    async with launched(gated, {}, "/health/ready") as url:
        await capacity(url, TRAFFIC, CAPACITY_REQUESTS)  # before anything was measured nothing is refused
        for number in range(size.rounds):
            rates = REAL_RATES if number % 2 == 0 else REAL_RATES[::-1]
            goodputs = {f"{rate:g}": (await goodput(url, load, rate * full, number))[0] for rate in rates}
            good, tries = await goodput(url, returning, OVERLOAD * full, number, patience)
            rounds.append({"goodput": goodputs, "returning": good, **returns_of(tries, returning)})
    by_rate = {
        f"{rate:g}": statistics.fmean(each["goodput"][f"{rate:g}"] for each in rounds) for rate in REAL_RATES
    }
    returned, let_in = (sum(each[key] for each in rounds) for key in ("returned", "let_in"))
    figures: dict[str, float | None] = {
        "embedded_goodput_over_best": by_rate[f"{OVERLOAD:g}"] / max(by_rate.values()),
        "embedded_let_in_share": let_in / returned if returned else None,
        "embedded_fifo_goodput_over_best": statistics.fmean(g for g, _ in fifo) / max(by_rate.values()),
    }
    return figures, {
        "capacity_per_s": full,
        "ttft_s": load.ttft_s,
        "goodput_per_s": by_rate,
        "rounds": rounds,
    }


def _load(full: float, units: float, warmup_units: float) -> Load:
    """full: requests per second of a full engine; the inverse is the unit."""
    return Load(TRAFFIC, units / full, warmup_units / full, TTFT_UNITS / full)


def returns_of(tries: Sequence[Try], load: Load) -> dict[str, int]:
    """Of the counted time: what comes after the last arrival meets no load."""
    counted = [each for each in tries if load.warmup_s <= each.at_s < load.load_s]
    returned = [each for each in counted if each.attempt]
    return {
        "refused": sum(each.told_s is not None for each in counted),
        "returned": len(returned),
        "let_in": sum(each.told_s is None for each in returned),
    }


async def refusals(size: Size) -> tuple[dict[str, float | None], dict[str, Any]]:
    """As the client sees them, which is more than from headers read to bytes written."""
    async with launched(serve_command("mock", {"max_queue_size": MOCK_QUEUE}), {}, "/health/ready") as url:
        load = Load(TRAFFIC, size.mock_s, 0.0, MOCK_TTFT_S)
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
        "slots": REAL_SLOTS, "context_tokens": REAL_CONTEXT, "ttft_units": TTFT_UNITS,
        "capacity_requests": CAPACITY_REQUESTS, "mock_rate": MOCK_RATE, "mock_queue": MOCK_QUEUE,
        "mock_ttft_s": MOCK_TTFT_S, "tries": TRIES, "patience_units": PATIENCE_UNITS,
        "full": FULL, "quick": QUICK,
    },
    bars=(
        Bar("refusal_p99_ms", "<=", 5.0),
        Bar("embedded_goodput_over_best", ">=", 0.9, quick=False),
        Bar("embedded_let_in_share", ">=", 0.9, quick=False),
    ),
    run=measure,
    slos={"default": {"ttft_units": TTFT_UNITS}},
)  # fmt: skip
