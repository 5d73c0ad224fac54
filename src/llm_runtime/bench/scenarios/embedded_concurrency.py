"""Native concurrency on the embedded engine: eight requests in it, against one."""

from __future__ import annotations

from llm_runtime.bench import in_flight
from llm_runtime.bench.embedded import embedded_engine
from llm_runtime.bench.in_flight import CLIENTS, IN_FLIGHT, INPUT_TOKENS, OUTPUT_TOKENS, Size
from llm_runtime.bench.scenario import Bar, Result, Scenario

CONTEXT_TOKENS = 512
THREADS = 1
FULL = Size(3, 70)
QUICK = Size(1, 8)


async def measure(quick: bool) -> Result:
    few, many = IN_FLIGHT
    async with embedded_engine(_settings(few)) as (one, _), embedded_engine(_settings(many)) as (eight, _):
        return await in_flight.measure({few: one, many: eight}, QUICK if quick else FULL)


def _settings(count: int) -> dict[str, object]:
    return {"native_backend_concurrency": count, "n_ctx": CONTEXT_TOKENS, "n_threads": THREADS}


SCENARIO = Scenario(
    name="embedded-native-concurrency",
    question="What do eight requests in flight give over one on the embedded engine, for eight clients?",
    workload={
        "in_flight": IN_FLIGHT, "clients": CLIENTS, "input_tokens": INPUT_TOKENS, "threads": THREADS,
        "output_tokens": OUTPUT_TOKENS, "context_tokens": CONTEXT_TOKENS, "full": FULL, "quick": QUICK,
    },
    bars=(Bar("failed", "<=", 0.0), Bar("throughput_gain", ">=", 1.25, quick=False)),
    run=measure,
)  # fmt: skip
