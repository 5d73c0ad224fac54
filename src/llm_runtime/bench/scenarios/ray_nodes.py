"""Two nodes and three engine replicas on real Ray: what they give over one, and what a lost node costs.

The engine is the mock, whose speed is known and needs no processor: what is measured is the runtime and
Ray, not how many models two cores can compute. A node is lost by killing every process on it at once.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.ray_bed import RayBed, ray_bed
from llm_runtime.bench.ray_loads import ends, is_told, mock_settings, pools, until_ready
from llm_runtime.bench.records import Status
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.summary import summarise

NUM_SLOTS = 12
PREFILL_MS = 50.0
DECODE_MS = 100.0
REPLICAS = 3
NODES = (3, 3)
"""Engines each has room for: either has for all, so that what one loses the other can start."""
STREAMS = 32
TOKENS_OF_LOST = 80
KILL_AFTER_S = 2.0
"""With all streams in their engines, well inside the answers."""
LOOK_EVERY_S = 0.1
KEPT = (
    "output_throughput", "median_ttft_ms", "median_itl_ms", "p95_e2el_ms", "completed", "failed", "duration",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """requests_per_slot: of the throughput runs."""

    requests_per_slot: int
    output_tokens: int


FULL = Size(2, 64)
QUICK = Size(1, 40)


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    settings = mock_settings(num_slots=NUM_SLOTS, prefill_ms=PREFILL_MS, decode_ms=DECODE_MS)
    details: dict[str, Any] = {}
    async with ray_bed({**settings, "ray.min_replicas": "1"}, NODES) as bed:
        for count in (1, REPLICAS):
            if count > 1:
                await bed.command(f"scale {count}")
            await until_ready(bed.url, count)
            details[f"replicas_{count}"] = await _throughput(bed.url, count * NUM_SLOTS, size)
        lost = await _lose_a_node(bed)
    rates = [details[f"replicas_{count}"]["output_throughput"] for count in (1, REPLICAS)]
    figures = {
        "tokens_per_s_of_1": rates[0],
        f"tokens_per_s_of_{REPLICAS}": rates[1],
        f"throughput_{REPLICAS}_over_1": rates[1] / rates[0],
        "failed": sum(details[f"replicas_{count}"]["failed"] for count in (1, REPLICAS)),
        **{name: lost[name] for name in ("streams_completed", "streams_told_of_an_error", "silent_losses")},
        "s_until_all_clients_knew": lost["s_until_all_clients_knew"],
        "s_to_full_strength": lost["s_to_full_strength"],
    }
    return Result(figures, {**details, "lost_node": lost})


async def _throughput(url: str, clients: int, size: Size) -> dict[str, Any]:
    plan = Plan(
        Target(url, ignore_eos=True),
        ClosedLoop(clients),
        (TrafficClass(input_tokens=Fixed(16), output_tokens=Fixed(size.output_tokens)),),
        Limits(requests=clients * size.requests_per_slot),
    )
    summary = summarise(await run(plan))
    return {key: summary.get(key) for key in KEPT}


async def _lose_a_node(bed: RayBed) -> dict[str, Any]:
    by_node = (await bed.command("engines"))["engines"][1:]
    victim = max(range(len(by_node)), key=lambda position: len(by_node[position]))
    plan = Plan(
        Target(bed.url, ignore_eos=True),
        ClosedLoop(STREAMS),
        (TrafficClass(input_tokens=Fixed(16), output_tokens=Fixed(TOKENS_OF_LOST)),),
        Limits(requests=STREAMS, warmup_requests=0),
    )
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(run(plan), name="load")]
    try:
        await _all_running(bed.url)
        await asyncio.sleep(KILL_AFTER_S)
        held = {name: replica["num_taken_slots"] for (pool,) in [await pools(bed.url)]
                for name, replica in pool["replicas"].items() if replica["num_taken_slots"]}  # fmt: skip
        killed_at, killed_time = time.monotonic(), time.time()
        await bed.command(f"kill-node {victim}")
        tasks.append(asyncio.create_task(_strength(bed.url, killed_at), name="strength"))
        result, full_strength_s = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    records = result.records
    failed = [record for record in records if record.status is not Status.COMPLETED]
    told_at = [result.started_at + record.finished_at for record in failed if record.finished_at is not None]
    return {
        "engines_by_node": [len(pids) for pids in by_node],
        "engines_lost": len(by_node[victim]),
        "streams_by_replica": held,
        "streams_completed": len(records) - len(failed),
        "streams_told_of_an_error": sum(is_told(record) for record in failed),
        "silent_losses": sum(not is_told(record) for record in records),
        "ends": ends(records),
        "s_until_all_clients_knew": max(told_at, default=killed_time) - killed_time,
        "s_to_full_strength": full_strength_s,
    }  # fmt: skip


async def _all_running(url: str) -> None:
    while True:
        (pool,) = await pools(url)
        if pool["num_running"] >= STREAMS:
            return
        await asyncio.sleep(LOOK_EVERY_S)


async def _strength(url: str, killed_at: float) -> float:
    """Seconds from the loss until as many engines are ready as before. They are missed first."""
    await until_ready(url, 1)
    await until_ready(url, REPLICAS)
    return time.monotonic() - killed_at


SCENARIO = Scenario(
    name="ray-nodes",
    question="What do three engine replicas on two nodes give over one, and what becomes of 32 streams and "
    "of the strength when the node with most engines is killed?",
    workload={
        "num_slots": NUM_SLOTS, "prefill_ms": PREFILL_MS, "decode_ms": DECODE_MS, "replicas": REPLICAS,
        "nodes": NODES, "streams": STREAMS, "tokens_of_lost": TOKENS_OF_LOST,
        "kill_after_s": KILL_AFTER_S, "full": FULL, "quick": QUICK,
    },
    bars=(
        Bar(f"throughput_{REPLICAS}_over_1", ">=", 2.7),
        Bar("failed", "<=", 0.0),
        Bar("silent_losses", "<=", 0.0),
        Bar("s_to_full_strength", "<=", 60.0),
    ),
    run=measure,
)  # fmt: skip
