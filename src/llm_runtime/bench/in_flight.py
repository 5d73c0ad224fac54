"""What native concurrency gives: an engine with several requests in it, against one at a time.

The same client load on servers that differ in nothing but how many requests they let into their engine, in
turn, round by round. With one request in flight the others wait in our queue; with as many as there are
clients none does, and the engine works on them together.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.metrics import completed
from llm_runtime.bench.records import RequestRecord, Status
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Result
from llm_runtime.bench.summary import latency_keys, summarise

IN_FLIGHT = (1, 8)
CLIENTS = 8
INPUT_TOKENS = 24
OUTPUT_TOKENS = 32
KEPT = ("output_throughput", "median_ttft_ms", "median_e2el_ms", "completed", "failed", "duration")
SHOWN = ("median_ttft_ms", "median_e2el_ms", "p90_e2el_ms", "p95_e2el_ms")
_QUEUE = re.compile(r"\bqueue;dur=([\d.]+)")


@dataclass(frozen=True, slots=True)
class Size:
    """requests: of one round on one server. All rounds together need 200 for a p95 to be shown."""

    rounds: int
    requests: int


async def measure(urls: Mapping[int, str], size: Size) -> Result:
    """urls: of ready servers, by requests in flight. Throughputs are medians over the rounds, latencies
    those of all requests of all rounds, the gain is the median of the rounds' own."""
    found: dict[int, list[dict[str, Any]]] = {count: [] for count in urls}
    records: dict[int, list[RequestRecord]] = {count: [] for count in urls}
    for number in range(size.rounds):
        for count in list(urls) if number % 2 == 0 else list(reversed(list(urls))):
            result = await run(_plan(urls[count], size, number))
            summary = summarise(result)
            found[count].append({key: summary.get(key) for key in KEPT})
            records[count] += result.records
    figures: dict[str, float | None] = {}
    for count, rounds in found.items():
        latencies = latency_keys(completed(records[count]), 0)
        figures |= {f"in_flight_{count}_{key}": latencies.get(key) for key in SHOWN}
        figures[f"in_flight_{count}_median_queue_ms"] = _median_queue_ms(records[count])
        figures[f"in_flight_{count}_output_throughput"] = _median(rounds, "output_throughput")
        figures[f"in_flight_{count}_failed"] = sum(one["failed"] for one in rounds)
    few, many = min(urls), max(urls)
    gains = [
        b["output_throughput"] / a["output_throughput"] for a, b in zip(found[few], found[many], strict=True)
    ]
    figures["throughput_gain"] = statistics.median(gains)
    figures["failed"] = sum(one["failed"] for rounds in found.values() for one in rounds)
    return Result(figures, {"rounds": {str(count): rounds for count, rounds in found.items()}})


def _median(rounds: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(one[key] for one in rounds))


def _plan(url: str, size: Size, seed: int) -> Plan:
    traffic = TrafficClass(input_tokens=Fixed(INPUT_TOKENS), output_tokens=Fixed(OUTPUT_TOKENS))
    limits = Limits(requests=size.requests)
    return Plan(Target(url, ignore_eos=True), ClosedLoop(CLIENTS), (traffic,), limits, seed=seed)


def _median_queue_ms(records: Sequence[RequestRecord]) -> float | None:
    """As the receipts say that come with the answers."""
    told = [record.server_timing or "" for record in records if record.status is Status.COMPLETED]
    waits = [float(match[1]) for match in map(_QUEUE.search, told) if match]
    return statistics.median(waits) if waits else None
