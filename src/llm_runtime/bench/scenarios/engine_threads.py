"""How many threads the embedded engine should get by default: all cores, or all but one.

Tokens per second of llama.cpp's own server, alone on the machine and beside a process that keeps one
core busy, as a gateway under load does. Polling is off: threads that wait sleep.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.engine_commands import MODEL, llama_cpp_command
from llm_runtime.bench.launch import launched
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.summary import summarise
from llm_runtime.core.errors import BackendError

BURNER = "while True: pass"
INPUT_TOKENS = 24
OUTPUT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    streams: int
    requests: int


FULL = Size(rounds=3, streams=4, requests=12)
QUICK = Size(rounds=1, streams=4, requests=8)


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    cores = os.cpu_count() or 2
    candidates = {"all": cores, "all_but_one": max(1, cores - 1)}
    rates: dict[str, list[float]] = {}
    failed = 0
    for _ in range(size.rounds):
        for name, threads in candidates.items():
            command = llama_cpp_command(num_threads=threads, num_slots=8, context_tokens=2048, num_batch=16)
            async with launched(command, {}, "/health") as url:
                summary = await _load(url, size)
                rates.setdefault(f"{name}_quiet", []).append(summary["output_throughput"])
                async with _busy_core():
                    beside = await _load(url, size)
                rates.setdefault(f"{name}_beside_a_busy_process", []).append(beside["output_throughput"])
                failed += summary["failed"] + beside["failed"]
    medians = {f"tokens_per_s_{name}": statistics.median(values) for name, values in rates.items()}
    figures: dict[str, float | None] = {**medians, "failed": failed}
    for state in ("quiet", "beside_a_busy_process"):
        figures[f"all_but_one_over_all_{state}"] = (
            medians[f"tokens_per_s_all_but_one_{state}"] / medians[f"tokens_per_s_all_{state}"]
        )
    return Result(figures, {"cores": cores, "rates": rates})


async def _load(url: str, size: Size) -> dict[str, Any]:
    traffic = TrafficClass(input_tokens=Fixed(INPUT_TOKENS), output_tokens=Fixed(OUTPUT_TOKENS))
    plan = Plan(
        Target(url, model=MODEL, ignore_eos=True),
        ClosedLoop(size.streams),
        (traffic,),
        Limits(requests=size.requests),
    )
    return summarise(await run(plan))


@asynccontextmanager
async def _busy_core() -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BURNER)
    try:
        yield
    finally:
        ended_early = process.returncode is not None
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if ended_early:
            raise BackendError("the busy process did not stay busy")


SCENARIO = Scenario(
    name="engine-threads",
    question="With polling off, does the engine do better with a thread for every core or with one less, "
    "alone and beside a busy process?",
    workload={"full": FULL, "quick": QUICK, "input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS},
    bars=(Bar("failed", "<=", 0.0),),
    run=measure,
)
