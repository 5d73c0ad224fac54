"""The JSON metrics: the contract's keys, numbers a strict parser takes, and a balance that adds up."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson
import pytest

from llm_runtime.core.outcome import Outcome, Usage
from llm_runtime.telemetry.families import Sources
from llm_runtime.telemetry.loop_lag import LoopLag
from llm_runtime.telemetry.metrics import MetricsCollector
from llm_runtime.telemetry.snapshot import finite, json_snapshot
from tests.telemetry.builders import record, request, scenario, timeline

CONTRACT = {
    "request_count", "completed_count", "failed_count", "rejected_count", "rejections_by_reason",
    "rejections_by_priority", "active_requests", "generated_tokens_total", "batch_count", "batch_size_avg",
    "batch_size_distribution", "queue_wait_time_avg_s", "ttft_avg_s", "total_latency_avg_s", "gpu",
    "queue_size",
}  # fmt: skip
GPU_CONTRACT = {
    "status", "source", "reason", "gpu_count", "memory_used_mb", "memory_total_mb", "utilization_pct", "gpus",
}  # fmt: skip


def strict(snapshot: dict[str, Any]) -> Any:
    """Through JSON and back, with a parser that takes no NaN."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(constant)

    return json.loads(json.dumps(snapshot, allow_nan=False), parse_constant=refuse)


@pytest.mark.parametrize("sources", [Sources(MetricsCollector([])), scenario()], ids=["empty", "full"])
def test_the_contract_keys_are_there_and_json_carries_them(sources: Sources) -> None:
    snapshot = strict(json_snapshot(sources))
    assert snapshot.keys() >= CONTRACT
    assert snapshot["gpu"].keys() >= GPU_CONTRACT
    assert strict(orjson.loads(orjson.dumps(json_snapshot(sources)))) == snapshot


def test_nothing_measured_is_null_and_nothing_counted_is_zero() -> None:
    snapshot = json_snapshot(Sources(MetricsCollector(["tiny"])))
    for key in ("ttft_avg_s", "queue_wait_time_avg_s", "total_latency_avg_s", "batch_size_avg", "tpot_avg_s"):
        assert snapshot[key] is None
    for key in (
        "request_count",
        "completed_count",
        "rejected_count",
        "generated_tokens_total",
        "batch_count",
    ):
        assert snapshot[key] == 0
    assert snapshot["queue_size"] is None
    assert snapshot["gpu"]["status"] == "unavailable"
    assert snapshot["gpu"]["source"] is None


def test_numbers_of_the_scenario() -> None:
    snapshot = json_snapshot(scenario())
    assert snapshot["request_count"] == 6
    assert snapshot["completed_count"] == 1
    assert snapshot["failed_count"] == 1
    assert snapshot["evicted_count"] == 1
    assert snapshot["rejected_count"] == 2
    assert snapshot["active_requests"] == 1
    assert snapshot["refused_count"] == 1
    assert snapshot["rejections_by_reason"] == {"queue_full": 1, "rate_limit_exceeded": 1}
    assert snapshot["rejections_by_priority"] == {"5": 1, "9": 1}
    assert snapshot["reasons_by_outcome"]["failed"] == {"backend_crashed": 1}
    assert snapshot["generated_tokens_total"] == 5
    assert snapshot["estimated_tokens_total"] == 9
    assert snapshot["batch_count"] == 4
    assert snapshot["batch_size_avg"] == 4.0
    assert snapshot["batch_size_max"] == 7
    assert snapshot["batch_size_distribution"] == {"1": 1, "4": 2, "7": 1}
    assert snapshot["queue_wait_time_avg_s"] == 0.125
    assert snapshot["ttft_avg_s"] == 0.75
    assert snapshot["total_latency_avg_s"] == 2.0
    assert snapshot["queue_size"] == 3
    assert snapshot["num_running"] == 3
    assert snapshot["waiting_by_class"] == {"batch": 2, "standard": 1}
    assert snapshot["event_loop_lag_max_s"] == 0.25
    assert [replica["state"] for replica in snapshot["replicas"]] == ["ready", "crashed"]


def test_every_request_is_in_exactly_one_count() -> None:
    snapshot = json_snapshot(scenario())
    parts = sum(snapshot[f"{outcome.value}_count"] for outcome in Outcome) + snapshot["active_requests"]
    assert parts == snapshot["request_count"]


def test_f49_j_k_one_single_failed_request_makes_a_whole_report() -> None:
    """Field case F49 j, k: everything fails, and the report has its counts and nulls."""
    metrics = MetricsCollector(["tiny"])
    one = request()
    metrics.accepted(one)
    line = timeline(queue_s=None, total_s=0.0)
    metrics.settled(record(one, outcome=Outcome.FAILED, reason="backend_error", usage=Usage(), line=line))
    snapshot = strict(json_snapshot(Sources(metrics)))
    assert (snapshot["request_count"], snapshot["failed_count"]) == (1, 1)
    assert snapshot["total_latency_avg_s"] is None
    assert snapshot["tpot_avg_s"] is None


def test_distribution_keys_are_in_numeric_order() -> None:
    metrics = MetricsCollector([])
    for size in (16, 2, 10, 1):
        metrics.batch("m", size)
    assert list(json_snapshot(Sources(metrics))["batch_size_distribution"]) == ["1", "2", "10", "16"]


def test_infinite_and_undefined_numbers_become_null_at_any_depth() -> None:
    lag = LoopLag(now=lambda: 0.0)
    lag.last_s = float("nan")
    assert json_snapshot(Sources(MetricsCollector([]), loop_lag=lag))["event_loop_lag_s"] is None
    nested = {"a": [1.5, float("inf"), {"b": float("-inf")}], "c": (float("nan"), "text", None, True, 7)}
    assert finite(nested) == {"a": [1.5, None, {"b": None}], "c": [None, "text", None, True, 7]}
