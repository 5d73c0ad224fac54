"""A run as one JSON object that explains itself.

Where a figure means the same as in `vllm bench serve` it bears the same key, at the top level. Keys
of ours are grouped below names of their own. What is undefined or withheld is null; nothing is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from llm_runtime.bench import metrics, stats
from llm_runtime.bench.config import ClosedLoop, OpenLoop
from llm_runtime.bench.facts import without_folders
from llm_runtime.bench.metrics import Rates
from llm_runtime.bench.records import RequestRecord, Status
from llm_runtime.bench.run import RunResult
from llm_runtime.bench.sampler import summarised
from llm_runtime.bench.settings_json import plan_settings
from llm_runtime.bench.verdict import ClientHealth, client_health, judge

SCHEMA = "llm-runtime-bench/1"

Figure = Callable[[RequestRecord], float | None]
LATENCIES: Mapping[str, Figure] = {"ttft": metrics.ttft_s, "tpot": metrics.tpot_s, "e2el": metrics.e2e_s}


def summarise(result: RunResult, command: str | None = None) -> dict[str, Any]:
    """command: the command line to name. Takes up to seconds for very many requests."""
    plan, window = result.plan, result.window
    records = metrics.measured(result.records)
    rates = metrics.rates(records, plan.slo, window.from_s)
    tokens = metrics.token_facts(records)
    health = client_health(result)
    verdict = judge(result, health, tokens)
    end_s = window.from_s + rates.duration_s
    figures: dict[str, Any] = finite(
        {
            "schema": SCHEMA,
            "verdict": asdict(verdict),
            **_run_keys(result, rates),
            **_rate_keys(rates),
            "max_output_tokens_per_s": metrics.peak_output_rate(
                metrics.completed(records), window.from_s, end_s
            ),
            "max_concurrent_requests": metrics.peak_in_flight(result.records),
            **latency_keys(records, plan.seed),
            "percentile_rule": stats.RULE,
            "goodput": {"slo": asdict(plan.slo), **_goodput(rates)} if plan.slo else None,
            "counting_failures": _counting_failures(records),
            "steady": _steady(result),
            "waiting": {
                "client_wait": spread(metrics.values(records, metrics.client_wait_s)),
                "schedule_lag": spread(metrics.values(records, metrics.schedule_lag_s)),
                "connect": spread(metrics.values(records, metrics.connect_s)),
            },
            "errors": metrics.counted(records, lambda r: r.error),
            "error_codes": metrics.counted(records, lambda r: r.code),
            "http_statuses": metrics.counted(records, lambda r: _word(r.http_status)),
            "finish_reasons": metrics.counted(records, lambda r: r.finish_reason),
            "lengths": _lengths(records),
            "tokens": asdict(tokens),
            "classes": _classes(result, records),
            "client": _client(result, health),
            "settings": plan_settings(plan, result.salt),
            "trace": result.trace,
            "command": command,
            "server": result.server,
            "environment": result.environment,
            "server_means": result.server_means,
            "sampled": summarised(result.samples),
            "samples": [{"at_s": round(s.at_s, 3), **s.values} for s in result.samples],
        }
    )
    return figures


def latency_keys(records: Sequence[RequestRecord], seed: int) -> dict[str, Any]:
    """mean_, median_, std_, p90_, p95_ and p99_ of ttft, tpot, itl and e2el, in ms, and intervals_95."""
    keys: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for name, of in LATENCIES.items():
        _take(keys, intervals, name, stats.describe(metrics.values(records, of), seed))
    gaps = [metrics.itls_s(record) for record in records]
    pooled = [gap for some in gaps for gap in some]
    _take(keys, intervals, "itl", stats.describe(pooled, seed, with_intervals=False))
    per_request = [some for some in gaps if some]
    intervals["mean_itl_ms"] = _ms_interval(
        stats.ratio_mean_interval([sum(g) for g in per_request], [len(g) for g in per_request], seed)
    )
    return {**keys, "intervals_95": {name: bounds for name, bounds in intervals.items() if bounds}}


def spread(sample: Sequence[float]) -> dict[str, float | None]:
    """Mean, median, tail and extremes in ms, without intervals."""
    found = stats.describe(sample, 0, with_intervals=False)
    return {
        "num_samples": found.num_samples,
        "mean_ms": _ms(found.mean),
        "median_ms": _ms(found.median),
        **{f"p{p}_ms": _ms(value) for p, value in found.percentiles.items()},
        "max_ms": _ms(found.high),
    }


def finite(value: Any) -> Any:
    """The same with everything that JSON has no number for as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _run_keys(result: RunResult, rates: Rates) -> dict[str, Any]:
    load, target = result.plan.load, result.plan.target
    rate: float | str | None = None
    burstiness = None
    if isinstance(load, ClosedLoop):
        rate = "inf"
    elif isinstance(load, OpenLoop) and not load.profile:
        rate = "inf" if math.isinf(load.rate) else load.rate
        burstiness = None if load.process == "constant" else load.burstiness
    backend = "openai-chat" if target.endpoint == "chat" else "openai"
    return {
        "date": datetime.fromtimestamp(result.started_at, UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": backend,
        "endpoint_type": backend,
        "model_id": without_folders(result.model),
        "num_prompts": rates.num_requests,
        "request_rate": rate,
        "burstiness": burstiness,
        "max_concurrency": load.concurrency if isinstance(load, ClosedLoop) else load.max_in_flight,
    }


def _rate_keys(rates: Rates) -> dict[str, Any]:
    return {
        "duration": rates.duration_s,
        "completed": rates.num_completed,
        "failed": rates.num_failed,
        "total_input_tokens": rates.input_tokens,
        "total_output_tokens": rates.output_tokens,
        "request_throughput": rates.per_second(rates.num_completed),
        "request_goodput": rates.per_second(rates.num_good),
        "output_throughput": rates.per_second(rates.output_tokens),
        "total_token_throughput": rates.per_second(rates.input_tokens + rates.output_tokens),
    }


def _goodput(rates: Rates) -> dict[str, Any]:
    return {
        "num_good": rates.num_good,
        "share_of_all": rates.goodput_share,
        "requests_per_s": rates.per_second(rates.num_good),
        "output_tokens_per_s": rates.per_second(rates.good_output_tokens),
    }


def _counting_failures(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Percentiles over all requests, a failed one being slower than any other; null within those."""
    failed = sum(record.status is Status.FAILED for record in records)
    found: dict[str, Any] = {"failed_share": failed / len(records) if records else None}
    for name, of in (("ttft", metrics.ttft_s), ("e2el", metrics.e2e_s)):
        sample = metrics.values(records, of) + [math.inf] * failed
        for p in (50, *stats.PERCENTILES):
            value = stats.with_infinite(sample, p) if stats.supports(p, len(sample)) else None
            found[f"{'median' if p == 50 else f'p{p}'}_{name}_ms"] = _ms(value)
    return found


def _steady(result: RunResult) -> dict[str, Any] | None:
    """Rates while the load lasted, drain excluded, all requests counted that the server then had."""
    from_s = result.window.from_s
    to_s = min(result.window.to_s, result.load_end_s)
    if to_s <= from_s:
        return None
    done = metrics.completed(result.records)
    ended = sum(from_s <= (record.finished_at or 0.0) < to_s for record in done)
    return {
        "from_s": from_s,
        "to_s": to_s,
        "request_throughput": ended / (to_s - from_s),
        "output_throughput": metrics.tokens_within(done, from_s, to_s) / (to_s - from_s),
    }


def _client(result: RunResult, health: ClientHealth) -> dict[str, Any]:
    return {
        **asdict(health),
        "num_connects": result.num_connects,
        "num_retries": result.num_retries,
        "num_interrupted": sum(record.status is Status.INTERRUPTED for record in result.records),
        "num_abandoned_turns": result.num_abandoned_turns,
    }


def _classes(result: RunResult, records: Sequence[RequestRecord]) -> dict[str, Any] | None:
    """The main figures of each class of traffic, where there are several."""
    names = [traffic.name for traffic in result.plan.traffic]
    if len(names) < 2:
        return None
    classes = {}
    for name in names:
        own = [record for record in records if record.traffic == name]
        rates = metrics.rates(own, result.plan.slo, result.window.from_s)
        classes[name] = {
            "num_prompts": len(own),
            **_rate_keys(rates),
            "goodput_share": rates.goodput_share,
            **latency_keys(own, result.plan.seed),
        }
    return classes


def _lengths(records: Sequence[RequestRecord]) -> dict[str, Any]:
    done = metrics.completed(records)
    wanted: Mapping[str, Callable[[RequestRecord], int | None]] = {
        "input_tokens": lambda r: r.prompt_tokens,
        "output_tokens": lambda r: r.completion_tokens,
        "max_tokens": lambda r: r.max_tokens,
        "cached_tokens": lambda r: r.cached_tokens,
    }
    lengths = {}
    for name, of in wanted.items():
        sample = sorted(value for record in done if (value := of(record)) is not None)
        lengths[name] = {
            "min": sample[0] if sample else None,
            "mean": sum(sample) / len(sample) if sample else None,
            "median": sample[len(sample) // 2] if sample else None,
            "max": sample[-1] if sample else None,
        }
    return lengths


def _take(keys: dict[str, Any], intervals: dict[str, Any], name: str, found: stats.Distribution) -> None:
    figures = {"mean": found.mean, "median": found.median, "std": found.deviation}
    figures |= {f"p{p}": value for p, value in found.percentiles.items()}
    keys |= {f"{figure}_{name}_ms": _ms(value) for figure, value in figures.items()}
    intervals |= {f"{figure}_{name}_ms": _ms_interval(bounds) for figure, bounds in found.intervals.items()}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _ms_interval(bounds: stats.Interval | None) -> list[float] | None:
    return None if bounds is None else [1e3 * bounds[0], 1e3 * bounds[1]]


def _word(status: int | None) -> str | None:
    return None if status is None else str(status)
