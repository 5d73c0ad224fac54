"""What Ray Serve costs: processor time of a streamed token and of a plain request, and time to the first
token, through its proxy, our ingress and a replica, against the same runtime in one process.

Same mock engine, same load, in turn, in one run. Processor time is that of every process of either side,
less what it takes while nobody asks for anything.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.launch import launched
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.ray_bed import cpu_s_of, ray_bed
from llm_runtime.bench.ray_loads import mock_settings
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.serve_command import serve_command
from llm_runtime.bench.summary import summarise

NUM_SLOTS = 16
PREFILL_MS, DECODE_MS = 20.0, 40.0
STREAM_TOKENS = 100
PLAIN_TOKENS = 5
ALONE_TOKENS = 5
IDLE_S = 5.0
KEPT = (
    "median_ttft_ms", "median_itl_ms", "p95_itl_ms", "median_e2el_ms", "output_throughput", "completed",
    "failed", "duration",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """streams, plain, alone: requests of a round: NUM_SLOTS at once, likewise, and one by one."""

    rounds: int
    streams: int
    plain: int
    alone: int


FULL = Size(3, 32, 96, 20)
QUICK = Size(1, 32, 96, 20)

SINGLE = {
    "engines.mock.prefill_latency_ms": PREFILL_MS,
    "engines.mock.decode_latency_ms": DECODE_MS,
    "max_batch_size": NUM_SLOTS,
    "telemetry.gpu_poll_interval_s": 0,
}
BATCH_TIMEOUT_MS = 20
"""The mock of one process starts a batch for all; Ray's replica has one for each request. Who is asked one
by one must not wait for company, so a process of its own is asked then."""


@dataclass(frozen=True, slots=True)
class Side:
    """alone_url: of what is asked one by one."""

    url: str
    alone_url: str
    cpu_s: Callable[[], float]


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    rounds: list[dict[str, Any]] = []
    async with _single() as single, _ray() as ray:
        sides = [("single", single), ("ray", ray)]
        idle = {name: await _idle(side) for name, side in sides}
        for number in range(size.rounds):
            found: dict[str, Any] = {}
            for name, side in sides if number % 2 == 0 else reversed(sides):
                found[name] = await _round(side, idle[name], size)
            rounds.append(found)
    figures: dict[str, float | None] = {}
    for name in ("single", "ray"):
        for key in ("us_per_token", "ms_per_plain_request", "ttft_alone_ms", "itl_ms"):
            figures[f"{name}_{key}"] = statistics.median(found[name][key] for found in rounds)
        figures[f"{name}_idle_cpu_share"] = idle[name]
    for key in ("us_per_token", "ms_per_plain_request"):
        figures[f"ray_over_single_{key}"] = statistics.median(
            found["ray"][key] / found["single"][key] for found in rounds
        )
    figures["ray_added_ttft_alone_ms"] = statistics.median(
        found["ray"]["ttft_alone_ms"] - found["single"]["ttft_alone_ms"] for found in rounds
    )
    figures["failed"] = sum(found[name]["failed"] for found in rounds for name in ("single", "ray"))
    return Result(figures, {"rounds": rounds})


@asynccontextmanager
async def _single() -> AsyncIterator[Side]:
    many = serve_command("mock", {**SINGLE, "batch_timeout_ms": BATCH_TIMEOUT_MS})
    one = serve_command("mock", {**SINGLE, "batch_timeout_ms": 0})
    async with launched(many, {}, "/health/ready") as server, launched(one, {}, "/health/ready") as alone:
        yield Side(server, alone, lambda: cpu_s_of(server.pid))


@asynccontextmanager
async def _ray() -> AsyncIterator[Side]:
    settings = mock_settings(num_slots=NUM_SLOTS, prefill_ms=PREFILL_MS, decode_ms=DECODE_MS)
    async with ray_bed(settings, (1,)) as bed:
        yield Side(bed.url, bed.url, bed.cpu_s)


async def _idle(side: Side) -> float:
    """Processors in use while nobody asks for anything."""
    begun, cpu_s = time.monotonic(), side.cpu_s()
    await asyncio.sleep(IDLE_S)
    return (side.cpu_s() - cpu_s) / (time.monotonic() - begun)


async def _round(side: Side, idle: float, size: Size) -> dict[str, Any]:
    alone, _ = await _load(replace(side, url=side.alone_url), idle, 1, size.alone, ALONE_TOKENS, stream=True)
    streams, streams_cpu_s = await _load(side, idle, NUM_SLOTS, size.streams, STREAM_TOKENS, stream=True)
    plain, plain_cpu_s = await _load(side, idle, NUM_SLOTS, size.plain, PLAIN_TOKENS, stream=False)
    return {
        "us_per_token": 1e6 * streams_cpu_s / (size.streams * STREAM_TOKENS),
        "ms_per_plain_request": 1e3 * plain_cpu_s / size.plain,
        "ttft_alone_ms": alone["median_ttft_ms"],
        "itl_ms": streams["median_itl_ms"],
        "failed": alone["failed"] + streams["failed"] + plain["failed"],
        "alone": alone,
        "streams": streams,
        "plain": plain,
    }


async def _load(
    side: Side, idle: float, clients: int, requests: int, tokens: int, *, stream: bool
) -> tuple[dict[str, Any], float]:
    """The summary, and the processor time it took beyond being idle."""
    plan = Plan(
        Target(side.url, ignore_eos=True, stream=stream),
        ClosedLoop(clients),
        (TrafficClass(input_tokens=Fixed(16), output_tokens=Fixed(tokens)),),
        Limits(requests=requests, warmup_requests=0),
    )
    begun, cpu_s = time.monotonic(), side.cpu_s()
    result = await run(plan)
    cpu_s = side.cpu_s() - cpu_s - idle * (time.monotonic() - begun)
    summary = summarise(result)
    return {key: summary.get(key) for key in KEPT}, cpu_s


SCENARIO = Scenario(
    name="ray-cost",
    question="What do Ray Serve's proxy, ingress and handle add to the processor time of a streamed token "
    "and of a plain request, and to the time to the first token, over the same runtime in one process?",
    workload={
        "num_slots": NUM_SLOTS, "prefill_ms": PREFILL_MS, "decode_ms": DECODE_MS,
        "batch_timeout_ms": BATCH_TIMEOUT_MS, "stream_tokens": STREAM_TOKENS,
        "plain_tokens": PLAIN_TOKENS, "alone_tokens": ALONE_TOKENS,
        "idle_s": IDLE_S, "full": FULL, "quick": QUICK,
    },
    bars=(Bar("failed", "<=", 0.0), Bar("ray_added_ttft_alone_ms", "<=", 50.0)),
    run=measure,
)  # fmt: skip
