"""What the runtime costs and what concurrency gains, on the real embedded engine.

Two servers of the same engine, same model, threads, prefill batch and slots: llama.cpp's own HTTP
server, and the runtime in front of an engine of its own. They are loaded in turn, round by round, with
unique prompts. One request in flight is the single-worker baseline.
"""

from __future__ import annotations

import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.engine_commands import MODEL, llama_cpp_command
from llm_runtime.bench.launch import launched
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.summary import summarise

NUM_SLOTS = 8
CONTEXT_TOKENS = 2048
PREFILL_BATCH = 16
INPUT_TOKENS = 24
OUTPUT_TOKENS = 48
THREADS = (1, 2)
LEVELS = (1, 4, 8, 16)
ROUNDS = 5
REQUESTS_PER_CLIENT = 2
MIN_REQUESTS = 6  # so that a case of one client lasts seconds, not one
KEPT = (
    "output_throughput", "median_ttft_ms", "median_itl_ms", "median_e2el_ms", "p95_e2el_ms", "completed",
    "failed", "duration",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    threads: tuple[int, ...]
    levels: tuple[int, ...]
    rounds: int
    requests_per_client: int


FULL = Size(THREADS, LEVELS, ROUNDS, REQUESTS_PER_CLIENT)
QUICK = Size((1,), (1, 8), 1, 2)


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    ratios: dict[str, list[float]] = {}
    throughput: dict[str, list[float]] = {}
    rounds: list[dict[str, Any]] = []
    for threads in size.threads:
        async with (
            launched(_direct(threads), {}, "/health") as direct,
            launched(_runtime_command(threads), {}, "/health/ready") as runtime,
        ):
            for number in range(size.rounds):
                for level in size.levels:
                    pair = [("direct", direct), ("runtime", runtime)]
                    found = {}
                    for name, url in pair if number % 2 == 0 else reversed(pair):
                        found[name] = await _load(url, level, size.requests_per_client, number)
                    key = f"threads_{threads}_streams_{level}"
                    rounds.append({"case": key, "round": number, **found})
                    rates = {name: summary["output_throughput"] for name, summary in found.items()}
                    ratios.setdefault(key, []).append(rates["runtime"] / rates["direct"])
                    throughput.setdefault(key, []).append(rates["runtime"])
    medians = {key: statistics.median(values) for key, values in throughput.items()}
    figures: dict[str, float | None] = {
        f"runtime_over_direct_{key}": statistics.median(values) for key, values in ratios.items()
    }
    figures["worst_runtime_over_direct"] = min(value for value in figures.values() if value is not None)
    for threads in size.threads:
        figures[f"gain_8_over_1_threads_{threads}"] = (
            medians[f"threads_{threads}_streams_8"] / medians[f"threads_{threads}_streams_1"]
        )
    figures["failed"] = sum(r[name]["failed"] for r in rounds for name in ("direct", "runtime"))
    return Result(figures, {"tokens_per_s_through_the_runtime": medians, "rounds": rounds})


def _direct(threads: int) -> str:
    return llama_cpp_command(
        num_threads=threads, num_slots=NUM_SLOTS, context_tokens=CONTEXT_TOKENS, num_batch=PREFILL_BATCH
    )


def _runtime_command(threads: int) -> str:
    program = Path(sys.executable).with_name("llm-runtime")
    settings = {
        "n_threads": threads,
        "native_backend_concurrency": NUM_SLOTS,
        "n_ctx": CONTEXT_TOKENS,
        "engines.llama_cpp.n_batch": PREFILL_BATCH,
    }
    options = " ".join(f"-o {name}={value}" for name, value in settings.items())
    return f"{shlex.quote(str(program))} serve --port {{port}} {options}"


async def _load(url: str, level: int, requests_per_client: int, seed: int) -> dict[str, Any]:
    traffic = TrafficClass(input_tokens=Fixed(INPUT_TOKENS), output_tokens=Fixed(OUTPUT_TOKENS))
    target = Target(url, model=MODEL, ignore_eos=True)
    limits = Limits(requests=max(level * requests_per_client, MIN_REQUESTS))
    summary = summarise(await run(Plan(target, ClosedLoop(level), (traffic,), limits, seed=seed)))
    return {key: summary.get(key) for key in KEPT}


SCENARIO = Scenario(
    name="native-concurrency",
    question="Does the runtime give at least 0.95 of llama.cpp's own HTTP server's tokens per second at 1, "
    "4, 8 and 16 streams, with 1 and 2 threads, and what do 8 requests in flight gain over 1?",
    workload={
        "full": FULL,
        "quick": QUICK,
        "num_slots": NUM_SLOTS,
        "context_tokens": CONTEXT_TOKENS,
        "prefill_batch": PREFILL_BATCH,
        "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "min_requests": MIN_REQUESTS,
    },
    bars=(Bar("worst_runtime_over_direct", ">=", 0.95, quick=False), Bar("failed", "<=", 0.0)),
    run=measure,
)
