"""How soon the engine's slot is idle after a client has left, seen in the engine itself.

Clients of the runtime close their connection: while tokens come and while the prompt is still being read,
streamed and plain, alone and beside requests that keep the engine busy. What the runtime believes does not
count: the engine's own list of slots is asked, past the runtime, until the request is in none of them.
Figures are too long rather than too short: each ends with the answer that shows the slot idle, which comes up
to the ten milliseconds between two looks after it was so.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from llm_runtime.bench.embedded import LOOK_EVERY_S, Engine, asking, embedded_engine
from llm_runtime.bench.scenario import Bar, Result, Scenario

SETTINGS = {"native_backend_concurrency": 8, "n_threads": 1}
PHASES = ("decode", "prefill")
STORY = "Tell a long story about a lighthouse, number {number}."
LONG_TEXT = "{number} " + "alpha beta gamma delta " * 220  # about 900 tokens: seconds of prefill
NEIGHBOUR_TOKENS = 1500
DECODE_S = 0.25  # before a client leaves
DECODE_LIMIT_MS = 250.0
PREFILL_LIMIT_MS = 500.0


@dataclass(frozen=True, slots=True)
class Size:
    neighbours: tuple[int, ...]
    repeats: int


FULL = Size((0, 3), 8)
QUICK = Size((1,), 4)


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    found: dict[str, list[float]] = {}
    async with embedded_engine(SETTINGS) as (url, engine):
        for num_neighbours, phase, stream in itertools.product(size.neighbours, PHASES, (True, False)):
            key = f"{phase}_{'streamed' if stream else 'plain'}_beside_{num_neighbours}"
            for number in range(size.repeats):
                async with _neighbours(url, engine, num_neighbours):
                    took_s = await _leave(url, engine, phase, number, stream=stream)
                found.setdefault(key, []).append(1000 * took_s)
    figures: dict[str, float | None] = {}
    for key, values in found.items():
        figures[f"{key}_median_ms"] = statistics.median(values)
        figures[f"{key}_worst_ms"] = max(values)
    for phase in PHASES:
        figures[f"worst_{phase}_ms"] = max(max(v) for key, v in found.items() if key.startswith(phase))
    return Result(figures, {"idle_after_ms": found})


@asynccontextmanager
async def _neighbours(url: str, engine: Engine, number: int) -> AsyncIterator[None]:
    """Requests that decode all the while; at the end they have left the engine."""
    async with AsyncExitStack() as stack:
        for each in range(number):
            body = {"max_tokens": NEIGHBOUR_TOKENS, "ignore_eos": True, "stream": True}
            text = STORY.format(number=f"{each} of the neighbours")
            reader = await stack.enter_async_context(asking(url, text, body))
            await reader.readuntil(b'"content":"')
        yield
    await engine.until(lambda busy: not busy)


async def _leave(url: str, engine: Engine, phase: str, number: int, *, stream: bool) -> float:
    """Seconds from a client's leaving to the engine's slot being idle."""
    known = await engine.busy()
    text = (STORY if phase == "decode" else LONG_TEXT).format(number=number)
    body = {"max_tokens": NEIGHBOUR_TOKENS if phase == "decode" else 8, "ignore_eos": True, "stream": stream}
    async with asking(url, text, body) as reader:
        tag = await engine.newcomer(known)
        if phase == "decode" and stream:
            await reader.readuntil(b'"content":"')
        elif phase == "decode":
            await asyncio.sleep(1.0)  # a plain reply does not tell that its prompt is over; it is short
        await asyncio.sleep(DECODE_S if phase == "decode" else number % 5 * 0.05)
    left_at = time.perf_counter()
    await engine.until(lambda busy: tag not in busy)
    return time.perf_counter() - left_at


SCENARIO = Scenario(
    name="cancellation",
    question="When a client leaves, is the engine's slot idle within 250 ms while tokens come and within "
    "500 ms during the prompt, streamed and plain, also beside busy neighbours?",
    workload={
        "full": FULL,
        "quick": QUICK,
        "settings": SETTINGS,
        "long_text_characters": len(LONG_TEXT),
        "neighbour_tokens": NEIGHBOUR_TOKENS,
        "look_every_s": LOOK_EVERY_S,
    },
    bars=(
        Bar("worst_decode_ms", "<=", DECODE_LIMIT_MS, quick=False),
        Bar("worst_prefill_ms", "<=", PREFILL_LIMIT_MS, quick=False),
    ),
    run=measure,
)
