"""What native concurrency gives: vLLM's engine in our process with eight requests in it, against one.

The same client load on both servers, in turn, round by round. With one request in flight seven wait in our
queue; with eight none does, and the engine works on them together.
"""

from __future__ import annotations

import os
import re
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.launch import launched
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.records import RequestRecord, Status
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.summary import summarise
from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.config import VllmConfig
from llm_runtime.engines.vllm.command import find_python

IN_FLIGHT = (1, 8)
CLIENTS = 8
INPUT_TOKENS = 24
OUTPUT_TOKENS = 32
CONTEXT_TOKENS = 512
KEPT = (
    "output_throughput", "median_ttft_ms", "mean_ttft_ms", "median_e2el_ms", "p90_e2el_ms", "p95_e2el_ms",
    "max_e2el_ms", "completed", "failed", "duration",
)  # fmt: skip
_QUEUE = re.compile(r"\bqueue;dur=([\d.]+)")


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    requests: int


FULL = Size(3, 32)
QUICK = Size(1, 8)


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    found: dict[int, list[dict[str, Any]]] = {count: [] for count in IN_FLIGHT}
    few, many = IN_FLIGHT
    async with (
        launched(_command(few), {}, "/health/ready") as one,
        launched(_command(many), {}, "/health/ready") as eight,
    ):
        urls = {few: one, many: eight}
        for number in range(size.rounds):
            for count in IN_FLIGHT if number % 2 == 0 else reversed(IN_FLIGHT):
                found[count].append(await _load(urls[count], size, number))
    figures: dict[str, float | None] = {}
    for count, rounds in found.items():
        for key in ("output_throughput", "median_ttft_ms", "median_queue_ms", "p90_e2el_ms", "max_e2el_ms"):
            values = [one[key] for one in rounds if one[key] is not None]
            figures[f"in_flight_{count}_{key}"] = statistics.median(values) if values else None
    gains = [
        b["output_throughput"] / a["output_throughput"] for a, b in zip(found[few], found[many], strict=True)
    ]
    figures["throughput_gain"] = statistics.median(gains)
    figures["failed"] = sum(one["failed"] for rounds in found.values() for one in rounds)
    return Result(figures, {"rounds": {str(count): rounds for count, rounds in found.items()}})


def _command(in_flight: int) -> str:
    python = find_python(VllmConfig(), os.environ)
    program = None if python is None else Path(python).with_name("llm-runtime")
    if program is None or not program.exists():
        raise ConfigError("this scenario needs vLLM: run `make vllm-env`, which makes .venv-vllm")
    options = {
        "backend": "vllm-inprocess",
        "native_backend_concurrency": in_flight,
        "vllm_max_model_len": CONTEXT_TOKENS,
        "engines.vllm.extra_arguments": "--enforce-eager",
    }
    settings = " ".join(shlex.join(("-o", f"{name}={value}")) for name, value in options.items())
    return f"env VLLM_CPU_KVCACHE_SPACE=1 {shlex.quote(str(program))} serve --port {{port}} {settings}"


async def _load(url: str, size: Size, seed: int) -> dict[str, Any]:
    traffic = TrafficClass(input_tokens=Fixed(INPUT_TOKENS), output_tokens=Fixed(OUTPUT_TOKENS))
    plan = Plan(
        Target(url, ignore_eos=True),
        ClosedLoop(CLIENTS),
        (traffic,),
        Limits(requests=size.requests),
        seed=seed,
    )
    result = await run(plan)
    summary = summarise(result)
    kept = {key: summary.get(key) for key in KEPT}
    return {**kept, "median_queue_ms": _median_queue_ms(result.records)}


def _median_queue_ms(records: Sequence[RequestRecord]) -> float | None:
    """As the receipts say that come with the answers."""
    told = [record.server_timing or "" for record in records if record.status is Status.COMPLETED]
    waits = [float(match[1]) for match in map(_QUEUE.search, told) if match]
    return statistics.median(waits) if waits else None


SCENARIO = Scenario(
    name="vllm-native-concurrency",
    question="What do eight requests in flight give over one on vLLM's engine in process, for eight clients?",
    workload={
        "in_flight": IN_FLIGHT, "clients": CLIENTS, "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS, "context_tokens": CONTEXT_TOKENS, "full": FULL, "quick": QUICK,
    },
    bars=(Bar("failed", "<=", 0.0), Bar("throughput_gain", ">=", 1.5, quick=False)),
    run=measure,
)  # fmt: skip
