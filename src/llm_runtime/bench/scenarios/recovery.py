"""What happens to eight streams when the engine below them is killed, and when it hangs.

The engine is killed with SIGKILL, or frozen with SIGSTOP: then it is alive, holds its connections open and
says nothing, which only a watchdog on its progress can tell from a long prompt. The engine may be silent for
five seconds here, a twelfth of the default.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from llm_runtime.bench.embedded import Engine, asking, embedded_engine
from llm_runtime.bench.scenario import Bar, Result, Scenario

NUM_STREAMS = 8
STALL_TIMEOUT_S = 5.0
SETTINGS = {
    "native_backend_concurrency": NUM_STREAMS,
    "engines.supervision.stall_timeout_s": STALL_TIMEOUT_S,
    "engines.supervision.max_restarts": 50,
    "engines.supervision.restart_backoff_max_s": 0.5,  # each fault is to count as the first
}
MAX_TOKENS = 1500
TOLD_WITHIN_S = {"killed": 1.0, "frozen": STALL_TIMEOUT_S + 1.0}
END_TIMEOUT_S = 60.0
FAULTS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int


FULL = Size(3)
QUICK = Size(1)


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds after the fault. told: streams whose last event was an error."""

    told: int
    last_told_s: float
    served_again_s: float


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    figures: dict[str, float | None] = {}
    details: dict[str, list[Round]] = {}
    async with embedded_engine(SETTINGS) as (url, engine):
        for name, fault in FAULTS.items():
            rounds = [await _round(url, engine, fault, number) for number in range(size.rounds)]
            details[name] = rounds
            figures[f"{name}_streams_told"] = min(each.told for each in rounds)
            figures[f"{name}_last_told_median_s"] = statistics.median(each.last_told_s for each in rounds)
            figures[f"{name}_last_told_worst_s"] = max(each.last_told_s for each in rounds)
            figures[f"{name}_served_again_median_s"] = statistics.median(
                each.served_again_s for each in rounds
            )
            figures[f"{name}_served_again_worst_s"] = max(each.served_again_s for each in rounds)
    return Result(figures, {"rounds": details})


async def _round(url: str, engine: Engine, fault: signal.Signals, number: int) -> Round:
    async with AsyncExitStack() as stack:
        readers = []
        for each in range(NUM_STREAMS):
            fields = {"max_tokens": MAX_TOKENS, "ignore_eos": True, "stream": True}
            text = f"Tell a long story, round {number}, number {each}."
            readers.append(await stack.enter_async_context(asking(url, text, fields)))
        for reader in readers:
            await reader.readuntil(b'"content":"')
        os.kill(engine.pid(), fault)
        at = time.perf_counter()
        async with asyncio.timeout(END_TIMEOUT_S):
            told = await asyncio.gather(*map(_ends_with_error, readers))
        last_told_s = time.perf_counter() - at
    async with asyncio.timeout(END_TIMEOUT_S):
        while True:
            if await _served(url):
                break
            await asyncio.sleep(0.05)
    return Round(sum(told), last_told_s, time.perf_counter() - at)


async def _ends_with_error(reader: asyncio.StreamReader) -> bool:
    """Reads to the end of the chunked body. Raises TimeoutError by its caller when it never comes."""
    text = await reader.readuntil(b"\r\n0\r\n\r\n")
    events = [line for line in text.splitlines() if line.startswith(b"data: ")]
    return bool(events) and b'"error"' in events[-1] and b'"finish_reason":"' not in text


async def _served(url: str) -> bool:
    async with asking(url, "Hi", {"max_tokens": 1}) as reader:
        return b" 200 " in await reader.readline()


SCENARIO = Scenario(
    name="recovery",
    question="Engine killed, or frozen, under eight streams: is every client told within a second of the end "
    "or of the limit for an engine without progress, and how soon is service back?",
    workload={
        "full": FULL,
        "quick": QUICK,
        "settings": SETTINGS,
        "num_streams": NUM_STREAMS,
        "max_tokens": MAX_TOKENS,
    },
    bars=(
        Bar("killed_streams_told", ">=", NUM_STREAMS),
        Bar("frozen_streams_told", ">=", NUM_STREAMS),
        *(Bar(f"{name}_last_told_worst_s", "<=", limit_s) for name, limit_s in TOLD_WITHIN_S.items()),
        Bar("killed_served_again_worst_s", "<=", 10.0),
        Bar("frozen_served_again_worst_s", "<=", STALL_TIMEOUT_S + 10.0),
    ),
    run=measure,
)
