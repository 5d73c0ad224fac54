"""One at a time against engines that batch: Hugging Face `generate()`, vLLM, llama.cpp.

The same weights behind the same runtime (vLLM and Transformers get them dequantised), loaded at rising
concurrency with unique prompts. Transformers is the control: more clients only wait longer there.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
import statistics
from dataclasses import dataclass
from typing import Any

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.launch import launched
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.metrics import completed
from llm_runtime.bench.plain_call import post_json
from llm_runtime.bench.run import run
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.summary import latency_keys, summarise
from llm_runtime.bench.vllm_host import MODEL, Host
from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.engines.config import BUILTIN_MODEL

INPUT_TOKENS = 24
NUM_SLOTS = 16
CONTEXT_TOKENS = 2048
ENGINES: dict[str, dict[str, object]] = {
    "hf": {},
    "vllm": {
        "native_backend_concurrency": NUM_SLOTS,
        "vllm_max_model_len": CONTEXT_TOKENS,
    },
    "llama.cpp": {"native_backend_concurrency": NUM_SLOTS, "n_ctx": CONTEXT_TOKENS, "n_threads": 2},
}
CPU_CACHE = f"--kv-cache-memory-bytes {1 << 30}"
"""Of vLLM on processors: left alone it takes almost all memory there is."""

GREEDY_PROMPTS = (
    "What is the capital of France?", "Count from one to ten.", "Write one sentence about the sea.",
    "Translate 'good morning' into Spanish.",
)  # fmt: skip
GREEDY_TOKENS = 16
KEPT = ("output_throughput", "median_ttft_ms", "median_e2el_ms", "completed", "failed", "duration")
LATENCIES = ("median_ttft_ms", "median_e2el_ms", "p95_e2el_ms")


@dataclass(frozen=True, slots=True)
class Size:
    """requests: of one round at one level. All rounds of a level together need 200 for a p95."""

    levels: tuple[int, ...]
    rounds: int
    requests: int
    output_tokens: int


FULL = Size((1, 4, 8, 16), 3, 67, 8)
QUICK = Size((1, 4), 1, 4, 8)
GPU = Size((1, 4, 16), 3, 67, 32)


def on(host: Host) -> Scenario:
    """The scenario, for that host. llama.cpp has its own file of the builtin model and no other."""
    names = _names(host)

    async def measure(quick: bool) -> Result:
        size = QUICK if quick else GPU if host.gpu else FULL
        rounds: dict[str, dict[str, Any]] = {}
        texts: dict[str, list[str]] = {}
        not_run: dict[str, str] = {}
        figures: dict[str, float | None] = {}
        for name in names:
            try:
                async with launched(command(host, name), {}, "/health/ready") as url:
                    texts[name] = [await asyncio.to_thread(_greedy, url, prompt) for prompt in GREEDY_PROMPTS]
                    rounds[name] = {}
                    for level in size.levels:
                        rounds[name][str(level)] = await _level(figures, name, url, level, size)
            except LLMRuntimeError as error:
                not_run[name] = str(error)
        _compare(figures, names, size.levels, texts)
        figures["failed"] = sum(
            one["failed"] for levels in rounds.values() for level in levels.values() for one in level
        )
        figures["not_run"] = len(not_run)
        return Result(figures, {**rounds, "greedy": texts, "not_run": not_run})

    return Scenario(
        name=f"{host.mark}engines",
        question="What do engines that batch give over Transformers' generate(), one request at a time, on "
        "the same weights at 1 to 16 clients?",
        workload={
            "host": host.facts(),
            "engines": {name: ENGINES[name] for name in names},
            "full": GPU if host.gpu else FULL,
            "quick": QUICK,
            "input_tokens": INPUT_TOKENS,
            "greedy_prompts": GREEDY_PROMPTS,
            "greedy_tokens": GREEDY_TOKENS,
        },
        bars=(Bar("failed", "<=", 0.0), *(() if host.gpu else (Bar("not_run", "<=", 0.0),))),
        run=measure,
    )


def commands(host: Host) -> list[str]:
    """What a full run starts, one after the other."""
    return [command(host, name) for name in _names(host)]


def _names(host: Host) -> list[str]:
    return [name for name in ENGINES if name != "llama.cpp" or host.model == BUILTIN_MODEL]


def command(host: Host, engine: str) -> str:
    """A template for `launch.launched`. Raises ConfigError without vLLM's environment, which has Transformers
    as well."""
    options: dict[str, object] = {
        "backend": engine,
        "model_path": host.model,
        "model.name": MODEL,
        **ENGINES[engine],
    }
    if engine != "llama.cpp":
        options[f"engines.{engine}.python"] = host.interpreter()
    if engine == "vllm":
        arguments = [] if host.gpu else [CPU_CACHE]
        arguments += ["--load-format dummy"] if host.dummy_weights else []
        if arguments:
            options["engines.vllm.extra_arguments"] = " ".join(arguments)
    settings = " ".join(shlex.join(("-o", f"{name}={value}")) for name, value in options.items())
    return f"llm-runtime serve --port {{port}} {settings}"


async def _level(
    figures: dict[str, float | None], engine: str, url: str, level: int, size: Size
) -> list[dict[str, Any]]:
    """The rounds at one level; adds its figures."""
    results = [await run(_plan(url, level, size, seed)) for seed in range(size.rounds)]
    rounds = [summarise(result) for result in results]
    figures[f"{engine}_tokens_per_s_at_{level}"] = statistics.median(
        one["output_throughput"] for one in rounds
    )
    latencies = latency_keys([record for result in results for record in completed(result.records)], 0)
    figures |= {f"{engine}_{key}_at_{level}": latencies.get(key) for key in LATENCIES}
    return [{key: one.get(key) for key in KEPT} for one in rounds]


def _compare(
    figures: dict[str, float | None], engines: list[str], levels: tuple[int, ...], texts: dict[str, list[str]]
) -> None:
    """Adds every engine's throughput over the control's, and how often two say the same."""
    for engine, level in itertools.product(engines[1:], levels):
        rate, control = (figures.get(f"{name}_tokens_per_s_at_{level}") for name in (engine, engines[0]))
        figures[f"{engine}_over_hf_at_{level}"] = rate / control if rate is not None and control else None
    for one, other in itertools.combinations(texts, 2):
        same = [a == b for a, b in zip(texts[one], texts[other], strict=True)]
        figures[f"same_greedy_text_{one}_{other}"] = sum(same) / len(same)


def _greedy(url: str, prompt: str) -> str:
    """What the engine says at temperature 0."""
    fields = {"model": MODEL, "temperature": 0, "max_tokens": GREEDY_TOKENS}
    told = post_json(
        url, "/v1/chat/completions", {**fields, "messages": [{"role": "user", "content": prompt}]}
    )
    return str(told["choices"][0]["message"]["content"])


def _plan(url: str, level: int, size: Size, seed: int) -> Plan:
    traffic = TrafficClass(input_tokens=Fixed(INPUT_TOKENS), output_tokens=Fixed(size.output_tokens))
    target = Target(url, model=MODEL, ignore_eos=True)
    return Plan(target, ClosedLoop(level), (traffic,), Limits(requests=size.requests), seed=seed)


SCENARIO = on(Host())
