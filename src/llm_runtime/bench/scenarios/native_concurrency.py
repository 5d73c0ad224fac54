"""What the runtime costs and what concurrency gains, on the real embedded engine.

One engine process is loaded in turn through the runtime that owns it, and past the runtime at llama.cpp's
own HTTP server, on the very same socket: so nothing differs but the path, neither threads, slots and batch
nor what two processes of one program never have alike (memory layout). Turns are short and alternate,
because the speed of a shared machine wanders. Prompts are unique. One request in flight is the
single-worker baseline.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.embedded import embedded_engine
from llm_runtime.bench.engine_commands import MODEL
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.stats import mean_interval
from llm_runtime.bench.summary import summarise

NUM_SLOTS = 8
CONTEXT_TOKENS = 2048
PREFILL_BATCH = 16
INPUT_TOKENS = 24
OUTPUT_TOKENS = 32
THREADS = (1, 2)
LEVELS = (1, 4, 8, 16)
ROUNDS = 6
MIN_REQUESTS = 2  # of a turn; otherwise one for each client
KEPT = (
    "output_throughput", "median_ttft_ms", "median_itl_ms", "median_e2el_ms", "p95_e2el_ms", "completed",
    "failed", "duration",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    threads: tuple[int, ...]
    levels: tuple[int, ...]
    rounds: int


FULL = Size(THREADS, LEVELS, ROUNDS)
QUICK = Size((1,), (1, 8), 2)

Turn = dict[str, Any]


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    rounds: list[dict[str, Any]] = []
    for threads in size.threads:
        async with embedded_engine(_settings(threads)) as (runtime, engine):
            paths = {
                "direct": Target(engine.url(), api_key=engine.key(), model=MODEL, ignore_eos=True),
                "runtime": Target(runtime, model=MODEL, ignore_eos=True),
            }
            for target in paths.values():
                await _load(target, NUM_SLOTS, seed=-1)  # warm-up
            for number in range(size.rounds):
                for level in size.levels:
                    order = list(paths) if number % 2 == 0 else list(reversed(paths))
                    found = {name: await _load(paths[name], level, number) for name in order}
                    rounds.append({"case": f"threads_{threads}_streams_{level}", "round": number, **found})
    figures: dict[str, float | None] = {}
    rates: dict[str, dict[str, float]] = {}
    intervals: dict[str, object] = {}
    for case in dict.fromkeys(each["case"] for each in rounds):
        turns = [each for each in rounds if each["case"] == case]
        figures[f"runtime_over_direct_{case}"] = _ratio(turns)
        intervals[case] = mean_interval([_paired(turn) for turn in turns], seed=0)
        rates[case] = {name: _rate([turn[name] for turn in turns]) for name in ("direct", "runtime")}
    worst = min(value for value in figures.values() if value is not None)
    figures["worst_runtime_over_direct"] = worst
    figures["mean_runtime_over_direct"] = statistics.fmean(map(_paired, rounds))
    for threads in size.threads:
        of = f"threads_{threads}_streams_"
        figures[f"gain_8_over_1_threads_{threads}"] = rates[f"{of}8"]["runtime"] / rates[f"{of}1"]["runtime"]
    figures["failed"] = sum(turn[name]["failed"] for turn in rounds for name in ("direct", "runtime"))
    return Result(figures, {"tokens_per_s": rates, "paired_ratio_intervals": intervals, "rounds": rounds})


def _ratio(turns: Sequence[Turn]) -> float:
    """Of all tokens over all the time, so that a long turn weighs what it lasted."""
    return _rate([turn["runtime"] for turn in turns]) / _rate([turn["direct"] for turn in turns])


def _paired(turn: Turn) -> float:
    return float(turn["runtime"]["output_throughput"] / turn["direct"]["output_throughput"])


def _rate(summaries: Sequence[Turn]) -> float:
    tokens = sum(each["output_throughput"] * each["duration"] for each in summaries)
    return float(tokens / sum(each["duration"] for each in summaries))


def _settings(threads: int) -> dict[str, object]:
    return {
        "n_threads": threads,
        "native_backend_concurrency": NUM_SLOTS,
        "n_ctx": CONTEXT_TOKENS,
        "engines.llama_cpp.n_batch": PREFILL_BATCH,
    }


async def _load(target: Target, level: int, seed: int) -> dict[str, Any]:
    traffic = TrafficClass(input_tokens=Fixed(INPUT_TOKENS), output_tokens=Fixed(OUTPUT_TOKENS))
    limits = Limits(requests=max(level, MIN_REQUESTS))
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
