"""A burst from nothing to 300 requests in flight and back within a minute, on real Ray, with engines that
scale by themselves and with a fixed number. The engine is the mock: slow, and cheap to compute."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from llm_runtime.bench.config import Limits, OpenLoop, Plan, Segment, Target, TrafficClass
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.ray_bed import ray_bed
from llm_runtime.bench.ray_loads import ends, is_refusal, is_told, mock_settings, pools
from llm_runtime.bench.records import Status
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.summary import summarise

NUM_SLOTS = 50
MAX_QUEUE_SIZE = 100
MAX_REPLICAS = 6
PREFILL_MS, DECODE_MS, OUTPUT_TOKENS = 1000.0, 1000.0, 9
SERVICE_S = (PREFILL_MS + DECODE_MS * OUTPUT_TOKENS) / 1000.0
PEAK_IN_FLIGHT = 300
LOOK_EVERY_S = 1.0
KEPT = (
    "median_ttft_ms", "p95_ttft_ms", "median_e2el_ms", "p90_e2el_ms", "p95_e2el_ms", "completed", "failed",
    "duration",
)  # fmt: skip
SHOWN = ("completed", "refused", "most_waiting", "most_engines", "median_e2el_ms", "p95_e2el_ms")


@dataclass(frozen=True, slots=True)
class Size:
    """half_s: from nothing to the peak, and back."""

    half_s: float


FULL = Size(30.0)
QUICK = Size(12.0)


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    figures: dict[str, float | None] = {}
    details: dict[str, Any] = {}
    silent = 0
    for mode, scaling in (("fixed", {}), ("scaling", _scaling())):
        found = await _burst(size, scaling)
        details[mode] = found
        figures |= {f"{mode}_{name}": found[name] for name in SHOWN}
        silent += found["silent_losses"]
    figures["silent_losses"] = silent
    fixed, scaled = figures["fixed_refused"] or 0.0, figures["scaling_refused"] or 0.0
    figures["refusals_scaling_over_fixed"] = scaled / fixed if fixed else None
    return Result(figures, details)


def _scaling() -> dict[str, str]:
    return {
        "ray.max_replicas": str(MAX_REPLICAS),
        "ray.upscale_delay_s": "1",
        "ray.downscale_delay_s": "10",
    }


async def _burst(size: Size, scaling: dict[str, str]) -> dict[str, Any]:
    settings = mock_settings(
        num_slots=NUM_SLOTS, prefill_ms=PREFILL_MS, decode_ms=DECODE_MS, max_queue_size=MAX_QUEUE_SIZE
    )
    # So that with room for all the peak would be PEAK_IN_FLIGHT, if it lasted.
    rate = PEAK_IN_FLIGHT / SERVICE_S
    profile = (Segment(size.half_s, 0.0, rate), Segment(size.half_s, rate, 0.0))
    timeline: list[dict[str, float]] = []
    async with ray_bed({**settings, **scaling}, (MAX_REPLICAS,)) as bed:
        plan = Plan(
            Target(bed.url, ignore_eos=True),
            OpenLoop(profile=profile),
            (TrafficClass(input_tokens=Fixed(16), output_tokens=Fixed(OUTPUT_TOKENS)),),
            Limits(duration_s=2 * size.half_s),
        )
        watching = asyncio.ensure_future(_watch(bed.url, timeline))
        try:
            result = await run(plan)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    records, summary = result.records, summarise(result)
    return {
        **{key: summary.get(key) for key in KEPT},
        "completed": sum(record.status is Status.COMPLETED for record in records),
        "refused": sum(is_refusal(record) for record in records),
        "silent_losses": sum(not is_told(record) for record in records),
        "most_waiting": max((at["waiting"] for at in timeline), default=0.0),
        "most_engines": max((at["engines"] for at in timeline), default=0.0),
        "ends": ends(records),
        "timeline": timeline,
    }


async def _watch(url: str, timeline: list[dict[str, float]]) -> None:
    """Until cancelled: what waits and runs, every second."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        (pool,) = await pools(url)
        ready = sum(replica["state"] == "ready" for replica in pool["replicas"].values())
        timeline.append(
            {
                "at_s": round(loop.time() - begun, 2),
                "waiting": pool["num_waiting"],
                "running": pool["num_running"],
                "engines": ready,
            }
        )
        await asyncio.sleep(LOOK_EVERY_S)


SCENARIO = Scenario(
    name="ray-burst",
    question="What do engines that scale by themselves change in a burst from 0 to 300 requests in flight "
    "and back within 60 s?",
    workload={
        "num_slots": NUM_SLOTS, "max_queue_size": MAX_QUEUE_SIZE, "max_replicas": MAX_REPLICAS,
        "prefill_ms": PREFILL_MS, "decode_ms": DECODE_MS, "output_tokens": OUTPUT_TOKENS,
        "peak_in_flight": PEAK_IN_FLIGHT, "scaling": _scaling(), "full": FULL, "quick": QUICK,
    },
    bars=(
        Bar("silent_losses", "<=", 0.0),
        Bar("refusals_scaling_over_fixed", "<=", 0.5, quick=False),
        Bar("scaling_most_engines", ">=", 3.0, quick=False),
    ),
    run=measure,
)  # fmt: skip
