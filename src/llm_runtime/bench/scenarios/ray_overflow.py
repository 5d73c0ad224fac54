"""A thousand requests at once on real Ray, for one engine of sixteen slots and a short queue: every one ends
in an answer or in a refusal of ours, and Ray never has the word."""

from __future__ import annotations

from typing import Any

from llm_runtime.bench.config import Limits, OpenLoop, Plan, Target, TrafficClass
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.ray_bed import ray_bed
from llm_runtime.bench.ray_loads import ends, is_refusal, mock_settings
from llm_runtime.bench.records import Status
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario

REQUESTS = 1000
NUM_SLOTS = 16
MAX_QUEUE_SIZE = 64
PREFILL_MS, DECODE_MS, OUTPUT_TOKENS = 20.0, 20.0, 20


async def measure(quick: bool) -> Result:
    settings = mock_settings(
        num_slots=NUM_SLOTS, prefill_ms=PREFILL_MS, decode_ms=DECODE_MS, max_queue_size=MAX_QUEUE_SIZE
    )
    details: dict[str, Any] = {}
    figures: dict[str, float | None] = {}
    async with ray_bed(settings, (1,)) as bed:
        for stream in (True, False):
            kind = "streams" if stream else "plain"
            plan = Plan(
                Target(bed.url, ignore_eos=True, stream=stream),
                OpenLoop(float("inf")),
                (TrafficClass(input_tokens=Fixed(16), output_tokens=Fixed(OUTPUT_TOKENS)),),
                Limits(requests=REQUESTS),
            )
            records = (await run(plan)).records
            completed = [record for record in records if record.status is Status.COMPLETED]
            refused = [record for record in records if is_refusal(record)]
            waits = sorted(record.retry_after_s or 0.0 for record in refused)
            figures |= {
                f"{kind}_completed": len(completed),
                f"{kind}_refused_with_retry_after": len(refused),
                f"{kind}_others": len(records) - len(completed) - len(refused),
                f"{kind}_not_sent": REQUESTS - len(records),
                f"{kind}_fewer_than_slots_and_queue": max(NUM_SLOTS + MAX_QUEUE_SIZE - len(completed), 0),
            }
            details[kind] = {"ends": ends(records), "retry_after_s": waits[:: max(len(waits) // 10, 1)]}
    return Result(figures, details)


SCENARIO = Scenario(
    name="ray-overflow",
    question="Does every one of 1,000 requests at once, for an engine with max_ongoing_requests 16, end in "
    "200 or in a refusal with Retry-After?",
    workload={
        "requests": REQUESTS, "num_slots": NUM_SLOTS, "max_queue_size": MAX_QUEUE_SIZE,
        "prefill_ms": PREFILL_MS, "decode_ms": DECODE_MS, "output_tokens": OUTPUT_TOKENS,
    },
    bars=tuple(
        Bar(f"{kind}_{what}", "<=", 0.0)
        for kind in ("streams", "plain")
        for what in ("others", "not_sent", "fewer_than_slots_and_queue")
    ),
    run=measure,
)  # fmt: skip
