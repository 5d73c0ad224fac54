"""One at a time against engines that batch: Hugging Face `generate()`, vLLM, llama.cpp.

The same weights behind the same runtime (vLLM and Transformers get them dequantised), loaded at rising
concurrency with unique prompts. Transformers is the control: more clients only wait longer there.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
import statistics
import sys
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.engine_commands import MODEL
from llm_runtime.bench.launch import launched
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.metrics import completed
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.summary import latency_keys, summarise

INPUT_TOKENS = 24
OUTPUT_TOKENS = 12
CONTEXT_TOKENS = 2048
NUM_SLOTS = 8
ENGINES: dict[str, dict[str, object]] = {
    "hf": {},
    "vllm": {"native_backend_concurrency": NUM_SLOTS, "vllm_max_model_len": CONTEXT_TOKENS},
    "llama.cpp": {"native_backend_concurrency": NUM_SLOTS, "n_ctx": CONTEXT_TOKENS, "n_threads": 2},
}
GREEDY_PROMPTS = (
    "What is the capital of France?", "Count from one to ten.", "Write one sentence about the sea.",
    "Translate 'good morning' into Spanish.",
)  # fmt: skip
GREEDY_TOKENS = 16
GREEDY_TIMEOUT_S = 60.0
KEPT = ("output_throughput", "median_ttft_ms", "median_e2el_ms", "completed", "failed", "duration")
LATENCIES = ("median_ttft_ms", "median_e2el_ms", "p95_e2el_ms")


@dataclass(frozen=True, slots=True)
class Size:
    """requests: of one round at one level. All rounds of a level together need 200 for a p95."""

    levels: tuple[int, ...]
    rounds: int
    requests: int


FULL = Size((1, 4, 8), 3, 67)
QUICK = Size((1, 4), 1, 4)


async def measure(quick: bool) -> Result:
    size = QUICK if quick else FULL
    details: dict[str, Any] = {}
    texts: dict[str, list[str]] = {}
    figures: dict[str, float | None] = {}
    for engine, settings in ENGINES.items():
        async with launched(_command(engine, settings), {}, "/health/ready") as url:
            texts[engine] = [await asyncio.to_thread(_greedy, url, prompt) for prompt in GREEDY_PROMPTS]
            for level in size.levels:
                results = [await run(_plan(url, level, size.requests, seed)) for seed in range(size.rounds)]
                rounds = [summarise(result) for result in results]
                details.setdefault(engine, {})[str(level)] = [_kept(found) for found in rounds]
                rate = statistics.median(found["output_throughput"] for found in rounds)
                figures[f"{engine}_tokens_per_s_at_{level}"] = rate
                pooled = [record for result in results for record in completed(result.records)]
                latencies = latency_keys(pooled, 0)
                figures |= {f"{engine}_{key}_at_{level}": latencies.get(key) for key in LATENCIES}
    highest = size.levels[-1]
    control = figures[f"hf_tokens_per_s_at_{highest}"] or 0.0
    for engine in ("vllm", "llama.cpp"):
        rate = figures[f"{engine}_tokens_per_s_at_{highest}"] or 0.0
        figures[f"{engine}_over_hf_at_{highest}"] = rate / control if control else None
    for one, other in itertools.combinations(ENGINES, 2):
        same = [a == b for a, b in zip(texts[one], texts[other], strict=True)]
        figures[f"same_greedy_text_{one}_{other}"] = sum(same) / len(same)
    figures["failed"] = sum(
        found["failed"] for levels in details.values() for rounds in levels.values() for found in rounds
    )
    return Result(figures, {**details, "greedy": texts})


def _command(engine: str, settings: dict[str, object]) -> str:
    program = Path(sys.executable).with_name("llm-runtime")
    options = " ".join(f"-o {name}={value}" for name, value in settings.items())
    return f"{shlex.quote(str(program))} serve --port {{port}} --backend {engine} {options}"


def _greedy(url: str, prompt: str) -> str:
    """What the engine says at temperature 0."""
    fields = {"model": MODEL, "temperature": 0, "max_tokens": GREEDY_TOKENS}
    body = orjson.dumps({**fields, "messages": [{"role": "user", "content": prompt}]})
    connection = HTTPConnection(urlsplit(url).netloc, timeout=GREEDY_TIMEOUT_S)
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    with closing(connection):
        return str(orjson.loads(connection.getresponse().read())["choices"][0]["message"]["content"])


def _plan(url: str, level: int, requests: int, seed: int) -> Plan:
    traffic = TrafficClass(input_tokens=Fixed(INPUT_TOKENS), output_tokens=Fixed(OUTPUT_TOKENS))
    target = Target(url, ignore_eos=True)
    return Plan(target, ClosedLoop(level), (traffic,), Limits(requests=requests), seed=seed)


def _kept(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: summary.get(key) for key in KEPT}


SCENARIO = Scenario(
    name="engines",
    question="What do engines that batch give over Transformers' generate(), one request at a time, on the "
    "same weights at 1, 4 and 8 clients?",
    workload={
        "engines": ENGINES,
        "full": FULL,
        "quick": QUICK,
        "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "greedy_prompts": GREEDY_PROMPTS,
        "greedy_tokens": GREEDY_TOKENS,
    },
    bars=(Bar("failed", "<=", 0.0),),
    run=measure,
)
