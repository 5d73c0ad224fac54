"""What the runtime costs and what concurrency gains, on the real embedded engine.

One engine process is loaded in turn through the runtime that owns it, and past the runtime at llama.cpp's
own HTTP server, on the very same socket: so nothing differs but the path, neither threads, slots and batch
nor what two processes of one program never have alike (memory layout).

The machine is a share of a host: for seconds at a time its cores are about 1.7 times slower than else,
whatever runs on them. So a turn is short (one request of each stream, a fixed count of tokens, about a
second or two below sixteen streams) and the paths take turns in the order A B B A B A A B: what drifts
cancels, and most pairs of neighbours fall into one mood of the machine. The estimate of a cell is the median
of the ratios of its pairs. A pair across a change of mood is off by far, to either side alike; a mean follows
such pairs, a median does not. It favours neither path: exchanged, they have the reciprocal as their median,
and each comes first in half of the pairs. What a median could hide are stalls of one path in fewer than half
of its turns, so all tokens over all time, which hides nothing and wanders, stands beside each estimate. The
intervals are those of the bootstrap over pairs.

Connections and both paths are warm before a turn begins (llama.cpp's server keeps about ten; at sixteen
streams the others connect within the turn, as any client of it would have to). Prompts are unique. Answers
are short, so that what a request costs the runtime weighs more than it would in long ones. Sixteen streams
are twice the slots: half of them wait, in the runtime's queue or the engine's own.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from llm_runtime.bench.bodies import BodyWriter
from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.clock import quiet_collector
from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.driver import Driver
from llm_runtime.bench.embedded import embedded_engine
from llm_runtime.bench.engine_commands import MODEL
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.metrics import ttft_s
from llm_runtime.bench.prompts import PromptWriter
from llm_runtime.bench.records import Status
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.stats import median_interval
from llm_runtime.bench.workload import SyntheticSessions
from llm_runtime.core.errors import BackendError

NUM_SLOTS = 8
CONTEXT_TOKENS = 2048
PREFILL_BATCH = 16
INPUT_TOKENS = 8
OUTPUT_TOKENS = 16
THREADS = (1, 2)
LEVELS = (1, 4, 8, 16)
PATHS = ("direct", "runtime")
ORDER = (0, 1, 1, 0, 1, 0, 0, 1)
"""Of the paths in a block of turns: each pair has both, each path comes first in two of four."""

MIN_REQUESTS = 2
"""Of a turn; otherwise one for each stream. So one stream has a request that follows another, and of sixteen
streams half follow others into their slots."""

BAR = 0.95

TRAFFIC = TrafficClass(input_tokens=Fixed(INPUT_TOKENS), output_tokens=Fixed(OUTPUT_TOKENS))


@dataclass(frozen=True, slots=True)
class Size:
    """Every round has one block of turns at each level, so that a bad quarter of an hour is shared by all."""

    threads: tuple[int, ...]
    levels: tuple[int, ...]
    rounds: int


FULL = Size(THREADS, LEVELS, 11)
QUICK = Size((1,), (1, 8), 2)


@dataclass(frozen=True, slots=True)
class Turn:
    """failed: requests without all their tokens. ttft_s: median of its requests."""

    tokens: int
    duration_s: float
    failed: int
    connects: int
    ttft_s: float | None

    @property
    def rate(self) -> float:
        return self.tokens / self.duration_s


@dataclass(frozen=True, slots=True)
class Pair:
    """Neighbours in time at one cell; first: the path that went first."""

    first: str
    direct: Turn
    runtime: Turn

    @property
    def ratio(self) -> float:
        return self.runtime.rate / self.direct.rate


class Path:
    """One way to the engine, with connections that last from turn to turn. Owned by `measure`; one turn at
    a time."""

    def __init__(self, target: Target, client: LoadClient) -> None:
        self._target = target
        self._client = client
        self._salt = secrets.token_hex(8)
        self._num_turns = 0

    async def turn(self, streams: int) -> Turn:
        """Raises BackendError when nothing at all came back."""
        client, requests = self._client, max(streams, MIN_REQUESTS)
        await asyncio.gather(*(client.fetch("/health") for _ in range(requests)))  # opens what has expired
        self._num_turns += 1
        plan = Plan(self._target, ClosedLoop(streams), (TRAFFIC,), Limits(requests=requests))
        bodies = BodyWriter(self._target, MODEL, PromptWriter(f"{self._salt}:{self._num_turns}"))
        driver = Driver(plan, client, bodies, SyntheticSessions((TRAFFIC,), seed=0))
        connects = client.num_connects
        await driver.run()
        records = driver.ledger.records
        whole = sum(r.status is Status.COMPLETED and r.completion_tokens == OUTPUT_TOKENS for r in records)
        tokens = sum(r.completion_tokens or 0 for r in records if r.status is Status.COMPLETED)
        if not tokens:
            raise BackendError(f"a whole turn failed: {driver.ledger.last_error}")
        waits = [wait for record in records if (wait := ttft_s(record)) is not None]
        return Turn(
            tokens=tokens,
            duration_s=max(record.finished_at or 0.0 for record in records),
            failed=requests - whole,
            connects=client.num_connects - connects,
            ttft_s=statistics.median(waits) if waits else None,
        )


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    pairs: dict[str, list[Pair]] = {}
    for threads in size.threads:
        async with AsyncExitStack() as stack:
            runtime, engine = await stack.enter_async_context(embedded_engine(_settings(threads)))
            targets = {
                "direct": Target(engine.url(), api_key=engine.key(), model=MODEL, ignore_eos=True),
                "runtime": Target(runtime, model=MODEL, ignore_eos=True),
            }
            paths = {
                name: Path(target, await stack.enter_async_context(LoadClient(target)))
                for name, target in targets.items()
            }
            for path in paths.values():
                await path.turn(max(size.levels))  # warm-up
            with quiet_collector():
                for _ in range(size.rounds):
                    for streams in size.levels:
                        pairs.setdefault(_case(threads, streams), []).extend(await block(paths, streams))
    return summarised(pairs, size)


async def block(paths: dict[str, Path], streams: int) -> list[Pair]:
    """Eight turns at once after each other, as their four pairs."""
    names = [PATHS[place] for place in ORDER]
    turns = [await paths[name].turn(streams) for name in names]
    found = []
    for at in range(0, len(names), 2):
        both = dict(zip(names[at : at + 2], turns[at : at + 2], strict=True))
        found.append(Pair(names[at], **both))
    return found


def summarised(pairs: dict[str, list[Pair]], size: Size) -> Result:
    """Figures and details of all cells, each with its pairs in the order of time."""
    figures: dict[str, float | None] = {}
    cells: dict[str, dict[str, Any]] = {}
    for case, found in pairs.items():
        cells[case] = cell = _cell(found)
        figures[f"runtime_over_direct_{case}"] = cell["runtime_over_direct"]
    estimates = [cell["runtime_over_direct"] for cell in cells.values()]
    lows = [cell["interval"][0] if cell["interval"] else None for cell in cells.values()]
    figures["worst_runtime_over_direct"] = min(estimates)
    figures["mean_runtime_over_direct"] = math.exp(statistics.fmean(map(math.log, estimates)))
    figures["lowest_bound"] = None if None in lows else min(low for low in lows if low is not None)
    figures["num_cells"] = len(cells)
    figures["num_cells_wholly_above"] = sum(low is not None and low >= BAR for low in lows)
    for threads in size.threads:
        one, eight = (cells[_case(threads, streams)]["tokens_per_s"]["runtime"] for streams in (1, 8))
        figures[f"gain_8_over_1_threads_{threads}"] = eight / one
    every = [turn for found in pairs.values() for pair in found for turn in (pair.direct, pair.runtime)]
    figures["failed"] = sum(turn.failed for turn in every)
    return Result(figures, {"cells": cells, "pairs": {case: _rows(found) for case, found in pairs.items()}})


def _cell(pairs: Sequence[Pair]) -> dict[str, Any]:
    """The estimate with its interval, and what lets a reader doubt it: all tokens over all time, the share
    of pairs that the runtime lost, and typical turns of both paths."""
    logs = [math.log(pair.ratio) for pair in pairs]
    bounds = median_interval(logs, seed=0)
    turns = {"direct": [pair.direct for pair in pairs], "runtime": [pair.runtime for pair in pairs]}
    all_over_all = {
        name: sum(turn.tokens for turn in some) / sum(turn.duration_s for turn in some)
        for name, some in turns.items()
    }
    return {
        "runtime_over_direct": math.exp(statistics.median(logs)),
        "interval": None if bounds is None else [math.exp(bound) for bound in bounds],
        "all_tokens_over_all_time": all_over_all["runtime"] / all_over_all["direct"],
        "share_of_pairs_lost": sum(value < 0 for value in logs) / len(logs),
        "num_pairs": len(pairs),
        "tokens_per_s": {name: statistics.median(turn.rate for turn in some) for name, some in turns.items()},
        "median_ttft_ms": {
            name: 1e3 * statistics.median([turn.ttft_s for turn in some if turn.ttft_s is not None])
            for name, some in turns.items()
        },
        "connects_within_turns": sum(turn.connects for some in turns.values() for turn in some),
    }


def _rows(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    return [
        {
            "first": pair.first,
            "ratio": round(pair.ratio, 4),
            "direct_s": round(pair.direct.duration_s, 4),
            "runtime_s": round(pair.runtime.duration_s, 4),
        }
        for pair in pairs
    ]


def _case(threads: int, streams: int) -> str:
    return f"threads_{threads}_streams_{streams}"


def _settings(threads: int) -> dict[str, object]:
    return {
        "n_threads": threads,
        "native_backend_concurrency": NUM_SLOTS,
        "n_ctx": CONTEXT_TOKENS,
        "engines.llama_cpp.n_batch": PREFILL_BATCH,
    }


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
        "order_of_paths": [PATHS[place] for place in ORDER],
    },
    bars=(Bar("worst_runtime_over_direct", ">=", BAR, quick=False), Bar("failed", "<=", 0.0)),
    run=measure,
)
