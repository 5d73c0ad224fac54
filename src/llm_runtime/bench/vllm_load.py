"""One load on one vLLM, in rounds: how fast, how late, and how often its cache was too small."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.facts import versions_beside
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.metrics import completed
from llm_runtime.bench.records import RequestRecord
from llm_runtime.bench.run import run
from llm_runtime.bench.summary import latency_keys, summarise
from llm_runtime.bench.vllm_host import MODEL, Engine, Host, Served, serving
from llm_runtime.core.errors import LLMRuntimeError

T = TypeVar("T")
KEPT = ("output_throughput", "median_ttft_ms", "median_e2el_ms", "completed", "failed", "duration", "sampled")
LATENCIES = ("median_ttft_ms", "p95_ttft_ms", "median_tpot_ms", "median_e2el_ms", "p95_e2el_ms")
SAMPLE_INTERVAL_S = 0.5
WARMUP_REQUESTS = 2


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    """clients: each sends its next request when its last is answered. requests: of a round; all rounds
    together need 200 for a p95. Answers have their full length."""

    clients: int
    input_tokens: int
    output_tokens: int
    rounds: int
    requests: int

    def plan(self, url: str, page_url: str, seed: int) -> Plan:
        traffic = TrafficClass(input_tokens=Fixed(self.input_tokens), output_tokens=Fixed(self.output_tokens))
        return Plan(
            Target(url, model=MODEL, ignore_eos=True),
            ClosedLoop(self.clients),
            (traffic,),
            Limits(requests=self.requests, warmup_requests=WARMUP_REQUESTS),
            seed=seed,
            sample_interval_s=SAMPLE_INTERVAL_S,
            metrics_urls=(page_url,),
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """rates: output tokens per second of each round. figures: throughput (median of the rounds), latencies of
    all requests, what failed, preemptions, the cache's highest use and the GPU's mean where it is known.
    version: vLLM's, as it tells it."""

    rates: tuple[float, ...]
    figures: Mapping[str, float | None]
    rounds: list[dict[str, Any]]
    version: Any = None


async def loaded(served: Served, load: ClosedLoad) -> Loaded:
    """Raises what `run` raises, and BackendError where vLLM's page lacks what is counted."""
    (version,) = (await versions_beside([served.page_url])).values()
    before = await served.preemptions()
    rounds: list[dict[str, Any]] = []
    records: list[RequestRecord] = []
    for seed in range(load.rounds):
        result = await run(load.plan(served.url, served.page_url, seed))
        summary = summarise(result)
        rounds.append({key: summary.get(key) for key in KEPT})
        records += result.records
    latencies = latency_keys(completed(records), 0)
    rates = tuple(float(one["output_throughput"]) for one in rounds)
    sampled = [one["sampled"] for one in rounds]
    return Loaded(
        rates,
        {
            "output_throughput": statistics.median(rates),
            **{key: latencies.get(key) for key in LATENCIES},
            "failed": sum(one["failed"] for one in rounds),
            "preemptions": await served.preemptions() - before,
            "cache_use_max": _over_rounds(sampled, "kv_usage", "max", max),
            "gpu_utilisation": _over_rounds(sampled, "gpu_utilization", "mean", statistics.fmean),
        },
        rounds,
        version,
    )


async def with_each(
    host: Host, engines: Mapping[str, Engine], use: Callable[[Served], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, str]]:
    """What `use` found with each engine, one after the other, and of the others why there is nothing: they
    did not start, or ended under load. A host that lacks memory or kernels for one still tells of the rest.
    Raises ConfigError without vLLM."""
    host.interpreter()
    found: dict[str, T] = {}
    not_run: dict[str, str] = {}
    for name, engine in engines.items():
        try:
            async with serving(host, engine) as served:
                found[name] = await use(served)
        except LLMRuntimeError as error:
            not_run[name] = str(error)
    return found, not_run


def _over_rounds(sampled: list[dict[str, Any]], column: str, figure: str, merge: Any) -> float | None:
    values = [one[column][figure] for one in sampled if column in one]
    return float(merge(values)) if values else None
