"""The collector's counters against a plain account of the same events, with looks at any moment."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.errors import BackendError, LLMRuntimeError, QueueFull, RateLimited
from llm_runtime.core.outcome import Outcome, RequestRecord, Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest, priority_class
from llm_runtime.telemetry.histogram import E2E_EDGES_S, TOKEN_EDGES, Histogram
from llm_runtime.telemetry.metrics import Counts, MetricsCollector
from tests.telemetry.builders import record, request

NAMES = (
    "accepted", "ended", "rejections", "prompt_tokens", "cached_tokens", "completion_tokens",
    "tenant_requests", "tenant_tokens", "tenant_service", "replica_requests",
)  # fmt: skip
MODELS = ("tiny", "late", "typo")
TENANTS = ("acme", "someone", "else")
REASONS = ("stop", "length", "backend_error", "odd one")


class Account:
    """What the names of the counters promise, event by event."""

    def __init__(self, tenants: bool) -> None:
        self.tenants = tenants
        self.models = {"tiny"}
        self.requests = 0
        self.active: set[str] = set()
        self.counters: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in NAMES}

    def _add(self, name: str, *key: str, number: int = 1) -> None:
        self.counters[name][key] += number

    def _labels(self, one: RuntimeRequest) -> tuple[str, str]:
        return one.model if one.model in self.models else "other", (one.via or one.kind).value

    def accepted(self, one: RuntimeRequest) -> None:
        self.requests += 1
        self.active.add(one.id)
        self._add("accepted", *self._labels(one))

    def _ended(self, one: RuntimeRequest, outcome: Outcome, reason: str) -> str:
        self.requests += one.id not in self.active
        self.active.discard(one.id)
        tenant = one.tenant if one.tenant == "acme" else "other"
        self._add("ended", *self._labels(one), outcome.value, reason)
        if outcome is Outcome.REJECTED:
            self._add("rejections", reason, str(one.priority))
        if self.tenants:
            self._add("tenant_requests", tenant, outcome.value)
        return tenant

    def rejected(self, one: RuntimeRequest, error: LLMRuntimeError) -> None:
        self._ended(one, Outcome.REJECTED, error.reason)

    def settled(self, end: RequestRecord) -> None:
        known = ("stop", "length") if end.outcome is Outcome.COMPLETED else ("backend_error",)
        one, usage = end.request, end.usage
        tenant = self._ended(one, end.outcome, end.reason if end.reason in known else "other")
        source = "estimate" if usage.estimated else "engine"
        if usage.prompt_tokens or usage.completion_tokens:
            self._add("prompt_tokens", *self._labels(one), source, number=usage.prompt_tokens)
            self._add("cached_tokens", *self._labels(one), source, number=usage.cached_tokens)
            self._add("completion_tokens", *self._labels(one), source, number=usage.completion_tokens)
        if end.replica is not None:
            self._add("replica_requests", end.replica, end.outcome.value)
        if self.tenants:
            weighed = usage.prompt_tokens + 2 * usage.completion_tokens
            self._add("tenant_tokens", tenant, "prompt", number=usage.prompt_tokens)
            self._add("tenant_tokens", tenant, "completion", number=usage.completion_tokens)
            self._add("tenant_service", tenant, priority_class(one.priority).value, number=weighed)

    def check(self, counts: Counts) -> None:
        assert counts.requests == self.requests
        for name, counter in self.counters.items():
            assert dict(getattr(counts, name)) == dict(counter), name


@given(st.booleans(), st.data())
def test_whoever_looks_sees_all_that_has_happened(tenants: bool, data: st.DataObject) -> None:
    account = Account(tenants)
    metrics = MetricsCollector(["tiny"], tenants=["acme"] if tenants else [])
    running: dict[str, RuntimeRequest] = {}
    for number in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["accepted", "rejected", "settled", "settled", "look", "models"]))
        one = request(
            f"r-{number}",
            data.draw(st.sampled_from(MODELS)),
            tenant=data.draw(st.sampled_from(TENANTS)),
            priority=data.draw(st.integers(0, 9)),
            kind=data.draw(st.sampled_from([EndpointKind.CHAT, EndpointKind.EMBEDDINGS])),
            via=data.draw(st.sampled_from([None, EndpointKind.MESSAGES])),
        )
        if what in ("rejected", "settled") and running and data.draw(st.booleans()):
            one = running.pop(data.draw(st.sampled_from(sorted(running))))
        if what == "accepted":
            running[one.id] = one
            metrics.accepted(one)
            account.accepted(one)
        elif what == "rejected":
            error = data.draw(st.sampled_from([RateLimited("no"), QueueFull("no"), BackendError("no")]))
            metrics.rejected(one, error)
            account.rejected(one, error)
        elif what == "settled":
            numbers = st.integers(0, 2)
            usage = Usage(
                data.draw(numbers), data.draw(numbers), data.draw(numbers), estimated=data.draw(st.booleans())
            )
            end = record(
                one,
                outcome=data.draw(st.sampled_from(Outcome)),
                reason=data.draw(st.sampled_from(REASONS)),
                usage=usage,
                replica=data.draw(st.sampled_from([None, "mock-0", "mock-1"])),
            )
            metrics.settled(end)
            account.settled(end)
        elif what == "look":
            account.check(metrics.counts)
        else:
            metrics.add_models(["late"])
            account.models.add("late")
        assert metrics.num_active == len(running)
    account.check(metrics.counts)


VALUES = st.lists(
    st.tuples(
        st.sampled_from([0.0, -0.0, 5e-324, 0.0005, 0.01, 0.3, 1, 3600.0, 4000.0, 1e300]), st.integers(1, 4)
    )
    | st.tuples(st.floats(allow_infinity=True, allow_nan=True), st.just(1)),
    max_size=12,
)


@given(VALUES, st.sampled_from([E2E_EDGES_S, TOKEN_EDGES]))
def test_values_that_come_in_runs_land_in_their_buckets(
    runs: list[tuple[float, int]], edges: tuple[float, ...]
) -> None:
    histogram, counts, total = Histogram(edges), [0] * (len(edges) + 1), 0.0
    for value, length in runs:
        for _ in range(length):
            histogram.observe(value)
            if 0 <= value < float("inf"):
                counts[bisect_left(edges, value)] += 1
                total += value
    assert histogram.counts == counts
    assert histogram.sum == total
