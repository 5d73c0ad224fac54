"""The JSON metrics: the keys people know, and more. Numbers are finite or null, never NaN.

Means are over this process's life, null while there is nothing to average. Every request is in
exactly one of completed, failed, timed_out, cancelled, evicted, rejected and active, and
`request_count` is their sum; calls refused before they became a request are in `refused_count` only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from llm_runtime.core.outcome import Outcome
from llm_runtime.telemetry.base import RuntimeReading
from llm_runtime.telemetry.families import Sources
from llm_runtime.telemetry.gpu_reading import unavailable
from llm_runtime.telemetry.histogram import Histogram
from llm_runtime.telemetry.metrics import Counts, Key, MetricsCollector


def json_snapshot(sources: Sources) -> dict[str, Any]:
    """A dictionary that any JSON encoder takes. On the loop's thread."""
    metrics = sources.metrics
    reading = sources.runtime.reading() if sources.runtime is not None else None
    gpu = sources.gpu.latest if sources.gpu is not None else unavailable("GPU telemetry is switched off")
    lag = sources.loop_lag
    snapshot: dict[str, Any] = {
        **_requests(metrics),
        **_tokens(metrics.counts),
        **_batches(metrics),
        **_latencies(metrics),
        **_levels(reading),
        "event_loop_lag_s": lag.last_s if lag is not None else None,
        "event_loop_lag_max_s": lag.max_s if lag is not None else None,
        "gpu": gpu.as_dict(),
    }
    return {key: finite(value) for key, value in snapshot.items()}


def finite(value: Any) -> Any:
    """The value with every float that JSON cannot carry replaced by None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def _requests(metrics: MetricsCollector) -> dict[str, Any]:
    counts = metrics.counts
    by_outcome = dict.fromkeys((outcome.value for outcome in Outcome), 0)
    by_outcome |= _sums(counts.ended, 2)
    return {
        "request_count": counts.requests,
        **{f"{outcome}_count": number for outcome, number in by_outcome.items()},
        "refused_count": sum(counts.refusals.values()),
        "active_requests": metrics.num_active,
        "rejections_by_reason": _sums(counts.rejections, 0),
        "rejections_by_priority": _sums(counts.rejections, 1),
        "refusals_by_reason": _sums(counts.refusals, 2),
        "reasons_by_outcome": _reasons(counts.ended),
    }


def _reasons(ended: Mapping[Key, int]) -> dict[str, dict[str, int]]:
    reasons: dict[str, dict[str, int]] = {}
    for (_, _, outcome, reason), number in ended.items():
        of_outcome = reasons.setdefault(outcome, {})
        of_outcome[reason] = of_outcome.get(reason, 0) + number
    return reasons


def _tokens(counts: Counts) -> dict[str, Any]:
    estimated = _sums(counts.prompt_tokens, 2).get("estimate", 0)
    estimated += _sums(counts.completion_tokens, 2).get("estimate", 0)
    return {
        "prompt_tokens_total": sum(counts.prompt_tokens.values()),
        "cached_tokens_total": sum(counts.cached_tokens.values()),
        "generated_tokens_total": sum(counts.completion_tokens.values()),
        "estimated_tokens_total": estimated,
    }


def _batches(metrics: MetricsCollector) -> dict[str, Any]:
    sizes = metrics.counts.batch_sizes
    return {
        "batch_count": sum(histogram.count for histogram in metrics.batches.values()),
        "batch_size_avg": _mean(metrics.batches.values()),
        "batch_size_max": max(sizes, default=None),
        "batch_size_distribution": {str(size): number for size, number in sorted(sizes.items())},
    }


def _latencies(metrics: MetricsCollector) -> dict[str, Any]:
    series = metrics.series.values()
    return {
        "queue_wait_time_avg_s": _mean(one.queue_wait for one in series),
        "ttft_avg_s": _mean(one.ttft for one in series),
        "itl_avg_s": _mean(one.itl for one in series),
        "tpot_avg_s": _mean(one.tpot for one in series),
        "total_latency_avg_s": _mean(one.e2e for one in series),
        "prompt_tokens_avg": _mean(one.prompt_tokens for one in series),
        "completion_tokens_avg": _mean(one.completion_tokens for one in series),
    }


def _levels(reading: RuntimeReading | None) -> dict[str, Any]:
    if reading is None:
        return {"queue_size": None, "num_running": None, "ready": None, "replicas": []}
    return {
        "queue_size": reading.num_waiting,
        "num_running": reading.num_running,
        "num_slots": sum(replica.num_slots for replica in reading.replicas),
        "num_free_slots": sum(replica.num_free_slots for replica in reading.replicas),
        "waiting_by_class": _waiting_by_class(reading),
        "predicted_wait_s": _predicted_wait_s(reading),
        "num_promised": sum(pool.num_promised for pool in reading.pools),
        "ready": reading.ready,
        "not_ready_reason": reading.reason,
        "draining": reading.draining,
        "replicas": [
            {
                "replica": one.replica,
                "model": one.model,
                "state": one.state,
                "num_slots": one.num_slots,
                "num_slots_in_force": one.num_usable_slots,
                "num_free_slots": one.num_free_slots,
                "num_running": one.num_running,
                "suspect": one.suspect,
            }
            for one in reading.replicas
        ],
    }


def _waiting_by_class(reading: RuntimeReading) -> dict[str, int]:
    waiting: dict[str, int] = {}
    for pool in reading.pools:
        for name, number in pool.waiting_by_class.items():
            waiting[name] = waiting.get(name, 0) + number
    return waiting


def _predicted_wait_s(reading: RuntimeReading) -> dict[str, float]:
    """By class; of several pools the longest."""
    waits: dict[str, float] = {}
    for pool in reading.pools:
        for name, wait_s in pool.predicted_wait_s.items():
            waits[name] = max(waits.get(name, 0.0), wait_s)
    return waits


def _sums(counter: Mapping[Key, int], label: int) -> dict[str, int]:
    """Totals by the label at that position, sorted by its value."""
    sums: dict[str, int] = {}
    for key, number in counter.items():
        sums[key[label]] = sums.get(key[label], 0) + number
    return dict(sorted(sums.items()))


def _mean(histograms: Iterable[Histogram]) -> float | None:
    count, total = 0, 0.0
    for histogram in histograms:
        count += histogram.count
        total += histogram.sum
    return total / count if count else None
