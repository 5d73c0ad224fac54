"""Recorded loads as asks, unscaled, and as many services at once as a fleet is meant for.

Copies of a trace are turned against each other in time (what is cut off at the end comes at the start),
so that their peaks do not fall together and the load has the trace's burstiness within each service only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from heapq import merge

from llm_runtime.bench.sim.job import Ask
from llm_runtime.bench.traces import TraceEntry

BLOCKS_OF_A_COPY = 1 << 40


def turned(entries: Sequence[TraceEntry], by_s: float, period_s: float) -> list[tuple[float, TraceEntry]]:
    """(instant, entry) by instant: each by_s later, those beyond the period at its start."""
    return sorted((((entry.at_s + by_s) % period_s, entry) for entry in entries), key=lambda item: item[0])


def copies(entries: Sequence[TraceEntry], num_copies: int, seed: int) -> Iterator[Ask]:
    """Asks by instant of so many services, each a tenant; the first copy is not turned. Prefixes are
    shared within a copy only."""
    period_s = max(entry.at_s for entry in entries) + 1e-6
    source = random.Random(f"copies:{seed}")
    shifts = [0.0, *(source.random() * period_s for _ in range(num_copies - 1))]
    streams = [
        [(at_s, copy, entry) for at_s, entry in turned(entries, shift, period_s)]
        for copy, shift in enumerate(shifts)
    ]
    merged = merge(*streams, key=lambda item: (item[0], item[1]))
    for number, (at_s, copy, entry) in enumerate(merged):
        yield ask_of(entry, number, at_s, copy)


def ask_of(entry: TraceEntry, number: int, at_s: float, copy: int = 0) -> Ask:
    """As the trace has it; an answer of no tokens counts as one, since something must be sent."""
    block_ids = entry.block_ids
    if copy and block_ids:
        block_ids = tuple(block + copy * BLOCKS_OF_A_COPY for block in block_ids)
    output_tokens = max(1, entry.output_tokens)
    return Ask(
        number=number,
        at_s=at_s,
        prompt_tokens=max(1, entry.input_tokens),
        output_tokens=output_tokens,
        max_tokens=output_tokens,
        tenant=f"service-{copy}",
        session=number,
        block_ids=block_ids,
        block_tokens=entry.block_tokens,
    )
