"""What is counted, where it lands, and that nobody outside decides how many series there are."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.errors import (
    BackendError,
    LLMRuntimeError,
    ModelNotFound,
    QueueFull,
    QuotaExceeded,
    RateLimited,
)
from llm_runtime.core.outcome import Outcome, Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.telemetry.families import Sources, collect
from llm_runtime.telemetry.histogram import (
    BATCH_EDGES,
    E2E_EDGES_S,
    QUEUE_WAIT_EDGES_S,
    TOKEN_EDGES,
    TPOT_EDGES_S,
    TTFT_EDGES_S,
    Histogram,
)
from llm_runtime.telemetry.metrics import MetricsCollector
from tests.telemetry.builders import record, request, timeline

CHAT = ("tiny", "chat", "standard")


def collector() -> MetricsCollector:
    return MetricsCollector(["tiny"])


def num_series(metrics: MetricsCollector) -> int:
    return sum(len(family.samples) for family in collect(Sources(metrics)))


# ---- distributions


def test_a_completed_stream_fills_every_distribution_once() -> None:
    metrics = collector()
    metrics.accepted(request())
    metrics.dispatched(request(), "mock-0", 0.25)
    metrics.settled(record())
    series = metrics.series[CHAT]
    assert (series.queue_wait.count, series.queue_wait.sum) == (1, 0.25)
    assert (series.ttft.count, series.ttft.sum) == (1, 0.75)
    assert (series.itl.count, series.itl.sum) == (2, 0.25)
    assert (series.tpot.count, series.tpot.sum) == (1, 0.125)
    assert (series.e2e.count, series.e2e.sum) == (1, 2.0)
    assert (series.prompt_tokens.count, series.prompt_tokens.sum) == (1, 20)
    assert (series.completion_tokens.count, series.completion_tokens.sum) == (1, 3)


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_f49_f_g_below_two_tokens_there_is_no_time_per_token(num_tokens: int) -> None:
    """Field case F49 f: absent, not zero and not a division by zero."""
    metrics = collector()
    line = timeline(gaps_s=(), prefill_s=0.5 if num_tokens else None)
    metrics.settled(record(usage=Usage(5, num_tokens), line=line))
    series = metrics.series[CHAT]
    assert series.tpot.count == 0
    assert series.ttft.count == num_tokens
    assert series.completion_tokens.sum == num_tokens


def test_f49_a_b_c_d_tokens_come_from_usage_and_not_from_reads() -> None:
    """Field case F49 a to d: a hundred tokens are a hundred, in however many reads they came."""
    for num_reads in (100, 25, 2):
        metrics = collector()
        gap_s = 2.0 / (num_reads - 1)
        line = timeline(gaps_s=(gap_s,) * (num_reads - 1), total_s=10.0)
        metrics.settled(record(usage=Usage(5, 100), line=line))
        assert sum(metrics.counts.completion_tokens.values()) == 100
        assert metrics.series[CHAT].tpot.sum == pytest.approx(2.0 / 99)
        assert metrics.series[CHAT].itl.count == num_reads - 1


def test_f49_e_estimated_tokens_are_counted_apart_and_make_no_time_per_token() -> None:
    metrics = collector()
    metrics.settled(record(usage=Usage(20, 30, estimated=True)))
    assert dict(metrics.counts.completion_tokens) == {("tiny", "chat", "estimate"): 30}
    series = metrics.series[CHAT]
    assert (series.tpot.count, series.prompt_tokens.count, series.completion_tokens.count) == (0, 0, 0)
    assert (series.ttft.count, series.e2e.count) == (1, 1)


def test_several_choices_have_no_time_per_token() -> None:
    metrics = collector()
    metrics.settled(record(request(num_slots=4), usage=Usage(20, 400)))
    assert metrics.series[CHAT].tpot.count == 0


@pytest.mark.parametrize(
    "outcome", [Outcome.FAILED, Outcome.CANCELLED, Outcome.TIMED_OUT, Outcome.EVICTED, Outcome.REJECTED]
)
def test_what_did_not_complete_has_no_duration_but_its_tokens_count(outcome: Outcome) -> None:
    metrics = collector()
    metrics.settled(record(outcome=outcome, reason="client_gone", usage=Usage(9, 4, cached_tokens=3)))
    series = metrics.series[CHAT]
    assert (series.e2e.count, series.completion_tokens.count) == (0, 0)
    assert (series.ttft.count, series.itl.count) == (1, 2)
    key = ("tiny", "chat", "engine")
    counts = metrics.counts
    assert (counts.prompt_tokens[key], counts.completion_tokens[key], counts.cached_tokens[key]) == (9, 4, 3)


def test_a_request_without_a_token_has_no_first_token_time() -> None:
    metrics = collector()
    metrics.settled(record(outcome=Outcome.FAILED, reason="backend_error", line=timeline(prefill_s=None)))
    assert metrics.series[CHAT].ttft.count == 0
    assert metrics.series[CHAT].itl.count == 0


def test_classes_and_endpoints_are_apart() -> None:
    metrics = collector()
    for priority in range(10):
        metrics.dispatched(request(priority=priority), "r", 1.0)
    metrics.dispatched(request(kind=EndpointKind.EMBEDDINGS), "r", 1.0)
    waits = {key: series.queue_wait.count for key, series in metrics.series.items()}
    assert waits == {
        ("tiny", "chat", "interactive"): 4,
        ("tiny", "chat", "standard"): 3,
        ("tiny", "chat", "batch"): 3,
        ("tiny", "embeddings", "standard"): 1,
    }


# ---- buckets


@pytest.mark.parametrize("edges", [QUEUE_WAIT_EDGES_S, TTFT_EDGES_S, TPOT_EDGES_S, E2E_EDGES_S])
def test_f50_c_half_a_millisecond_and_a_quarter_hour_have_finite_buckets(edges: tuple[float, ...]) -> None:
    """Field case F50 c."""
    histogram = Histogram(edges)
    for duration_s in (0.0005, 45.0, 200.0, 900.0):
        histogram.observe(duration_s)
    assert histogram.counts[-1] == 0
    assert histogram.counts[0] == 1
    assert sum(1 for count in histogram.counts if count) >= 3


@pytest.mark.parametrize(
    "edges", [QUEUE_WAIT_EDGES_S, TTFT_EDGES_S, TPOT_EDGES_S, E2E_EDGES_S, TOKEN_EDGES, BATCH_EDGES]
)
def test_edges_rise_and_neighbours_are_near(edges: tuple[float, ...]) -> None:
    ratios = [later / earlier for earlier, later in pairwise(edges)]
    assert all(1 < ratio <= 6 for ratio in ratios)


@given(values=st.lists(st.floats(0, 5000), max_size=50), edge=st.sampled_from(E2E_EDGES_S))
def test_a_bucket_holds_what_is_not_above_its_edge(values: list[float], edge: float) -> None:
    histogram = Histogram(E2E_EDGES_S)
    for value in [*values, edge]:
        histogram.observe(value)
    up_to_edge = sum(histogram.counts[: E2E_EDGES_S.index(edge) + 1])
    assert up_to_edge == sum(value <= edge for value in [*values, edge])
    assert histogram.count == len(values) + 1
    assert histogram.sum == pytest.approx(sum(values) + edge)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -1.0])
def test_what_is_no_measurement_is_left_out(value: float | None) -> None:
    histogram = Histogram(E2E_EDGES_S)
    histogram.observe(value)
    assert (histogram.count, histogram.sum) == (0, 0.0)


def test_counts_over_other_edges_are_refused() -> None:
    with pytest.raises(ValueError, match="same edges"):
        Histogram(E2E_EDGES_S).merge((1, 2, 3), 1.0)


# ---- ends


def test_each_request_has_one_end_whatever_the_order_of_events() -> None:
    """Random lives of many requests: nothing is lost and nothing is counted twice."""
    rng = random.Random(3)
    metrics = collector()
    expected = dict.fromkeys(Outcome, 0)
    open_requests = []
    for number in range(3000):
        one = request(f"r{number}", priority=rng.randrange(10), stream=rng.random() < 0.5)
        if rng.random() < 0.2:
            expected[Outcome.REJECTED] += 1
            metrics.rejected(one, rng.choice((RateLimited, QueueFull, QuotaExceeded))("no"))
            continue
        metrics.accepted(one)
        open_requests.append(one)
        while open_requests and rng.random() < 0.45:
            ending = open_requests.pop(rng.randrange(len(open_requests)))
            outcome = rng.choice(list(Outcome))
            expected[outcome] += 1
            metrics.settled(record(ending, outcome=outcome, reason="stop"))
    ended = dict.fromkeys(Outcome, 0)
    for (_, _, word, _), number in metrics.counts.ended.items():
        ended[Outcome(word)] += number
    assert ended == expected
    assert metrics.num_active == len(open_requests) > 0
    assert metrics.counts.requests == 3000 == sum(expected.values()) + metrics.num_active
    assert sum(metrics.counts.rejections.values()) == expected[Outcome.REJECTED]


def test_a_capacity_refusal_after_acceptance_is_one_request() -> None:
    metrics = collector()
    metrics.accepted(request("x"))
    metrics.rejected(request("x"), QueueFull("full"))
    assert (metrics.counts.requests, metrics.num_active) == (1, 0)


def test_rejections_are_counted_by_reason_and_priority() -> None:
    metrics = collector()
    metrics.rejected(request(priority=0), QueueFull("full"))
    metrics.rejected(request(priority=0), QueueFull("full"))
    metrics.rejected(request(priority=9), QuotaExceeded("used up"))
    assert dict(metrics.counts.rejections) == {("queue_full", "0"): 2, ("insufficient_quota", "9"): 1}


def test_tenants_are_a_label_only_where_they_are_configured() -> None:
    without, named = collector(), MetricsCollector(["tiny"], tenants=["acme"])
    for metrics in (without, named):
        for tenant in ("acme", "someone", "someone-else"):
            one = request(tenant, tenant=tenant)
            metrics.accepted(one)
            metrics.settled(record(one))
    assert not without.counts.tenant_requests
    assert dict(named.counts.tenant_requests) == {("acme", "completed"): 1, ("other", "completed"): 2}
    assert named.counts.tenant_tokens["other", "completion"] == 6


def test_batches_are_counted_by_exact_size_and_in_buckets() -> None:
    metrics = collector()
    for size in (1, 8, 8, 3):
        metrics.batch("mock-0", size)
    assert dict(metrics.counts.batch_sizes) == {1: 1, 8: 2, 3: 1}
    histogram = metrics.batches[("mock-0",)]
    assert (histogram.count, histogram.sum) == (4, 20)


# ---- floods (field case F46)


ODD = ['"', "\\", "\n", "x" * 10_000, "😀", "\ud800", "", " ", "{}", "a=b,c"]


def test_f46_a_flood_of_odd_values_adds_a_bounded_number_of_series() -> None:
    metrics = MetricsCollector(["tiny"], tenants=["acme"])

    def flood(salt: str) -> None:
        for odd in [*ODD, *(f"x-{salt}-{number}" for number in range(5000))]:
            one = request(odd, model=odd, tenant=odd)
            metrics.accepted(one)
            metrics.dispatched(one, "mock-0", 0.1)
            metrics.settled(record(one, reason=odd))
            metrics.settled(record(one, reason=odd, outcome=Outcome.FAILED))
            metrics.rejected(one, RateLimited("no", reason=odd))
            metrics.refused(odd, 404, odd)
            metrics.engine_state("mock-0", odd, odd)

    flood("first")
    num_before = num_series(metrics)
    flood("second")
    assert num_series(metrics) == num_before
    for status in (-1, 0, 200, 1000, 10**9):
        metrics.refused("chat", status, "invalid_request")
    assert num_series(metrics) == num_before + 1
    for priority in (17, -1, 10**9):
        metrics.rejected(request(model="typo", priority=priority), RateLimited("no"))
    assert num_series(metrics) <= num_before + 3
    assert num_before < 60
    assert metrics.num_active == 0


def test_a_configured_model_keeps_its_label_after_a_flood() -> None:
    metrics = collector()
    for number in range(5000):
        metrics.rejected(request(model=f"x-{number}"), ModelNotFound("no"))
    metrics.accepted(request())
    assert metrics.counts.accepted["tiny", "chat"] == 1
    assert metrics.counts.ended["other", "chat", "rejected", "model_not_found"] == 5000


def test_batch_sizes_are_bounded() -> None:
    metrics = collector()
    for size in range(1, 5000):
        metrics.batch("mock-0", size)
    assert len(metrics.counts.batch_sizes) == 512
    assert metrics.batches[("mock-0",)].count == 4999


def test_every_reason_of_the_error_tree_is_known_and_a_new_one_falls_back_to_its_class() -> None:
    metrics = collector()

    def kinds(root: type[LLMRuntimeError]) -> list[type[LLMRuntimeError]]:
        return [root, *(kind for child in root.__subclasses__() for kind in kinds(child))]

    for kind in kinds(LLMRuntimeError):
        metrics.rejected(request(), kind("text"))
    assert not [key for key in metrics.counts.rejections if key[0] == "other"]
    metrics.rejected(request(), BackendError("text", reason="made_up_by_upstream"))
    assert metrics.counts.rejections["backend_error", "5"] == 2
    metrics.refused("chat", 400, "made_up")
    assert metrics.counts.refusals["chat", "400", "other"] == 1


def test_further_reasons_can_be_declared() -> None:
    metrics = MetricsCollector([], reasons=["special"])
    metrics.refused("chat", 400, "special")
    assert metrics.counts.refusals["chat", "400", "special"] == 1


def test_an_event_is_cheap() -> None:
    """A bound far above the measured 10 us: it only catches work that grows."""
    metrics = collector()
    one, end = request(), record()
    started_at = time.process_time()
    for _ in range(2000):
        metrics.accepted(one)
        metrics.dispatched(one, "mock-0", 0.1)
        metrics.settled(end)
    assert (time.process_time() - started_at) / 2000 < 100e-6
