"""`adaptive-limit` on the embedded engine: 16 slots and nothing configured, against servers of 1, 2, 4, 8 and
16 slots as static caps, all loaded in turn with what 8 slots cannot quite carry. How fast the engine is today
is measured first: times are multiples of what one request takes of it when 8 slots are full.
"""

from __future__ import annotations

import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from llm_runtime.bench.config import TrafficClass
from llm_runtime.bench.goodput import Load, capacity, goodput
from llm_runtime.bench.launch import launched
from llm_runtime.bench.lengths import Uniform
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.serve_command import serve_command

REAL_SLOTS, REAL_CONTEXT = 16, 256
REAL_CAPS = (1, 2, 4, 8, REAL_SLOTS)
TRAFFIC = TrafficClass(input_tokens=Uniform(8, 24), output_tokens=Uniform(16, 32))
CAPACITY_REQUESTS, LEARNING_SEED = 24, 10_001
TTFT_UNITS = 8.0
REAL_OVERLOAD = 1.3
"""By what 8 slots complete while somebody always waits."""


@dataclass(frozen=True, slots=True)
class Size:
    """rounds: of all arms for load_units, of which warmup_units are not counted. learning_units: of load that
    the adaptive limit has before."""

    rounds: int
    load_units: float
    warmup_units: float
    learning_units: float


FULL = Size(rounds=3, load_units=50, warmup_units=10, learning_units=100)
QUICK = Size(rounds=1, load_units=12, warmup_units=3, learning_units=24)


def command(num_slots: int, ttft_s: float | None, *, adaptive: bool = False) -> str:
    """ttft_s: that clients declare; None: nothing."""
    limits = {} if ttft_s is None else {"request_timeout_s": ttft_s}
    return serve_command(
        "llama.cpp",
        {
            "native_backend_concurrency": num_slots,
            "n_ctx": REAL_CONTEXT,
            "scheduling.adaptive_limit": adaptive,
            **limits,
        },
    )


async def embedded(size: Size) -> tuple[dict[str, float | None], dict[str, Any]]:
    async with launched(command(8, None), {}, "/health/ready") as url:
        full = await capacity(url, TRAFFIC, CAPACITY_REQUESTS)
    rate, ttft_s = REAL_OVERLOAD * full, TTFT_UNITS / full
    commands = {f"cap_{cap}": command(cap, ttft_s) for cap in REAL_CAPS}
    commands["adaptive"] = command(REAL_SLOTS, ttft_s, adaptive=True)
    load = Load(TRAFFIC, size.load_units / full, size.warmup_units / full, ttft_s)
    rounds: list[dict[str, float]] = []
    async with AsyncExitStack() as stack:
        urls = {
            name: await stack.enter_async_context(launched(text, {}, "/health/ready"))
            for name, text in commands.items()
        }
        learning = replace(load, load_s=size.learning_units / full)
        await goodput(urls["adaptive"], learning, rate, LEARNING_SEED)
        for number in range(size.rounds):
            names = list(urls) if number % 2 == 0 else list(urls)[::-1]
            rounds.append({name: (await goodput(urls[name], load, rate, number))[0] for name in names})
    means = {name: statistics.fmean(each[name] for each in rounds) for name in commands}
    best = max((name for name in means if name != "adaptive"), key=lambda name: means[name])
    figures: dict[str, float | None] = {
        "embedded_goodput_over_best_cap": means["adaptive"] / means[best],
        "embedded_loss_at_the_wrong_end": 1 - min(means["cap_1"], means[f"cap_{REAL_SLOTS}"]) / means[best],
    }
    return figures, {
        "rate": rate,
        "ttft_s": ttft_s,
        "best_cap": best,
        "goodput_per_s": means,
        "rounds": rounds,
    }


async def measure(quick: bool) -> Result:
    figures, details = await embedded(QUICK if quick else FULL)
    return Result(figures, details)


SCENARIO = Scenario(
    name="adaptive-limit-engine",
    question="Does the adaptive limit, which nobody has configured, serve as many in time on the embedded "
    "engine as the best static cap?",
    workload={
        "slots": REAL_SLOTS, "context_tokens": REAL_CONTEXT, "caps": REAL_CAPS, "traffic": TRAFFIC,
        "capacity_requests": CAPACITY_REQUESTS, "ttft_units": TTFT_UNITS, "overload": REAL_OVERLOAD,
        "full": FULL, "quick": QUICK,
    },
    bars=(
        Bar("embedded_goodput_over_best_cap", ">=", 0.95, quick=False),
        Bar("embedded_loss_at_the_wrong_end", ">=", 0.15, quick=False),
    ),
    run=measure,
    slos={"default": {"ttft_units": TTFT_UNITS}},
)  # fmt: skip
