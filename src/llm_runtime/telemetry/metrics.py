"""`MetricsCollector`: counts what happens to requests. Knows no exposition format and reads no clock.

Every event costs a few additions to plain integers, and nothing is counted per token. Label values
are bounded by `labels.py`, so memory and scrape size depend on the configuration, not on clients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from llm_runtime.core.errors import (
    ConcurrencyLimited,
    LimiterUnavailable,
    LLMRuntimeError,
    NeverWithinLimit,
    RequestsLimited,
    TokensLimited,
)
from llm_runtime.core.outcome import Outcome, RequestRecord, Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest, priority_class
from llm_runtime.core.timeline import ITL_BUCKETS_S
from llm_runtime.telemetry import labels as label_values
from llm_runtime.telemetry.base import ENGINE_STATES
from llm_runtime.telemetry.histogram import (
    BATCH_EDGES,
    E2E_EDGES_S,
    QUEUE_WAIT_EDGES_S,
    TOKEN_EDGES,
    TPOT_EDGES_S,
    TTFT_EDGES_S,
    Histogram,
)
from llm_runtime.telemetry.labels import OTHER, Labels

MAX_BATCH_SIZES = 512
PROMPT_WEIGHT = 1
COMPLETION_WEIGHT = 2
LIMITS: Mapping[type[LLMRuntimeError], str] = {
    RequestsLimited: "requests",
    TokensLimited: "tokens",
    NeverWithinLimit: "tokens",
    ConcurrencyLimited: "concurrent_requests",
    LimiterUnavailable: "unknown",
}
"""Errors of a tenant's limits, and what the label says of each."""

Key = tuple[str, ...]


class Counts:
    """Monotone counters; the comment behind each names its labels, in order."""

    __slots__ = (
        "accepted", "attempts", "batch_sizes", "cached_tokens", "completion_tokens", "ended",
        "engine_state_changes", "prompt_tokens", "refusals", "rejections", "replica_requests", "requests",
        "suspect_leases", "tenant_limit_rejections", "tenant_requests", "tenant_service", "tenant_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = 0
        self.accepted: defaultdict[Key, int] = defaultdict(int)  # model, endpoint
        self.ended: defaultdict[Key, int] = defaultdict(int)  # model, endpoint, outcome, reason
        self.rejections: defaultdict[Key, int] = defaultdict(int)  # reason, priority
        self.refusals: defaultdict[Key, int] = defaultdict(int)  # endpoint, status, reason
        self.prompt_tokens: defaultdict[Key, int] = defaultdict(int)  # model, endpoint, source
        self.cached_tokens: defaultdict[Key, int] = defaultdict(int)  # model, endpoint, source
        self.completion_tokens: defaultdict[Key, int] = defaultdict(int)  # model, endpoint, source
        self.tenant_requests: defaultdict[Key, int] = defaultdict(int)  # tenant, outcome
        self.tenant_tokens: defaultdict[Key, int] = defaultdict(int)  # tenant, type
        self.attempts: defaultdict[Key, int] = defaultdict(int)  # replica, result, retried
        self.tenant_service: defaultdict[Key, int] = defaultdict(int)  # tenant, priority class
        self.tenant_limit_rejections: defaultdict[Key, int] = defaultdict(int)  # tenant, limit
        self.replica_requests: defaultdict[Key, int] = defaultdict(int)  # replica, outcome
        self.engine_state_changes: defaultdict[Key, int] = defaultdict(int)  # replica, state
        self.suspect_leases: defaultdict[Key, int] = defaultdict(int)  # replica
        self.batch_sizes: defaultdict[int, int] = defaultdict(int)  # the size itself


class RequestSeries:
    """The distributions of one (model, endpoint, priority class). Names as in `core/timeline.py`."""

    __slots__ = ("completion_tokens", "e2e", "itl", "prompt_tokens", "queue_wait", "tpot", "ttft")

    def __init__(self) -> None:
        self.queue_wait = Histogram(QUEUE_WAIT_EDGES_S)
        self.ttft = Histogram(TTFT_EDGES_S)
        self.itl = Histogram(ITL_BUCKETS_S)
        self.tpot = Histogram(TPOT_EDGES_S)
        self.e2e = Histogram(E2E_EDGES_S)
        self.prompt_tokens = Histogram(TOKEN_EDGES)
        self.completion_tokens = Histogram(TOKEN_EDGES)


class _Row:
    """What the requests of one model, endpoint and priority are counted under. by_engine, estimated: keys of
    token counts, by who counted."""

    __slots__ = ("by_engine", "endpoint", "estimated", "model", "of_endpoint", "series")

    def __init__(self, model: str, endpoint: str) -> None:
        self.model = model
        self.endpoint = endpoint
        self.series: RequestSeries | None = None
        self.of_endpoint = (model, endpoint)
        self.by_engine = (model, endpoint, "engine")
        self.estimated = (model, endpoint, "estimate")


class MetricsCollector:
    """Implements `core.events.Events`. Owned by the runtime; events and scrapes share its thread.

    What enters which distribution:
        queue wait    each dispatch
        TTFT, ITL     every request of which a token was seen, however it ended
        TPOT          the same, if it is one sequence and the engine itself counted its tokens
        E2E           completed requests only: fast failures must not look like speed
        tokens        completed requests whose tokens the engine counted
    Token counters take everything that was spent, by requests that were cut as well; what is an
    estimate of ours is counted apart.
    """

    __slots__ = ("_active", "_labels", "_rows", "batches", "counts", "series")

    def __init__(
        self, models: Iterable[str], tenants: Iterable[str] = (), reasons: Iterable[str] = ()
    ) -> None:
        self._labels = Labels(models, tenants, reasons)
        self._active: set[str] = set()
        self.counts = Counts()
        self.series: dict[Key, RequestSeries] = {}  # model, endpoint, priority class
        self._rows: dict[tuple[str, EndpointKind, int], _Row] = {}
        self.batches: dict[Key, Histogram] = {}  # replica

    @property
    def num_active(self) -> int:
        """Requests that were accepted and have not ended: waiting or running."""
        return len(self._active)

    @property
    def has_tenants(self) -> bool:
        return self._labels.with_tenants

    def tenant(self, name: str) -> str:
        """The tenant's label."""
        return self._labels.tenant(name)

    def add_models(self, names: Iterable[str]) -> None:
        """Models that an engine turned out to have."""
        self._labels.add_models(names)
        self._rows.clear()

    # ---- events

    def accepted(self, request: RuntimeRequest) -> None:
        self._active.add(request.id)
        self.counts.requests += 1
        self.counts.accepted[self._row(request).of_endpoint] += 1

    def rejected(self, request: RuntimeRequest, error: LLMRuntimeError) -> None:
        self._end(request, Outcome.REJECTED, self._labels.error(error))
        limit = LIMITS.get(type(error))
        if limit is not None and self._labels.with_tenants:
            self.counts.tenant_limit_rejections[self._labels.tenant(request.tenant), limit] += 1

    def refused(self, endpoint: str, status: int, reason: str) -> None:
        labels = self._labels
        self.counts.refusals[
            labels.endpoint(endpoint), label_values.status(status), labels.reason(reason)
        ] += 1

    def dispatched(self, request: RuntimeRequest, replica: str, queue_wait_s: float) -> None:
        self._series(request, self._row(request)).queue_wait.observe(queue_wait_s)

    def attempt(self, request: RuntimeRequest, replica: str, result: str, *, retried: bool) -> None:
        self.counts.attempts[replica, result, "yes" if retried else "no"] += 1

    def batch(self, replica: str, num_requests: int) -> None:
        sizes = self.counts.batch_sizes
        if num_requests in sizes or len(sizes) < MAX_BATCH_SIZES:
            sizes[num_requests] += 1
        histogram = self.batches.get((replica,))
        if histogram is None:
            histogram = self.batches[(replica,)] = Histogram(BATCH_EDGES)
        histogram.observe(num_requests)

    def settled(self, record: RequestRecord) -> None:
        completed = record.outcome is Outcome.COMPLETED
        reason = self._labels.finish_reason if completed else self._labels.reason
        row = self._end(record.request, record.outcome, reason(record.reason))
        timeline, usage = record.timeline, record.usage
        self._tokens(record.request, usage, row.estimated if usage.estimated else row.by_engine)
        if record.replica is not None:
            self.counts.replica_requests[record.replica, record.outcome.value] += 1
        series = row.series or self._series(record.request, row)
        series.ttft.observe(timeline.ttft_s)
        if record.itl_counts is not None:
            series.itl.merge(record.itl_counts, record.itl_sum_s)
        if completed:
            series.e2e.observe(timeline.e2e_s)
        if usage.estimated:
            return
        if record.request.num_slots == 1:
            series.tpot.observe(timeline.tpot_s(usage.completion_tokens))
        if completed:
            series.prompt_tokens.observe(usage.prompt_tokens)
            series.completion_tokens.observe(usage.completion_tokens)

    def engine_state(self, replica: str, state: str, reason: str | None) -> None:
        self.counts.engine_state_changes[replica, state if state in ENGINE_STATES else OTHER] += 1

    def lease_suspect(self, replica: str, request_id: str) -> None:
        self.counts.suspect_leases[replica,] += 1

    # ---- parts

    def _end(self, request: RuntimeRequest, outcome: Outcome, reason: str) -> _Row:
        """The one end of a request, whether or not it had been accepted."""
        counts, labels = self.counts, self._labels
        if request.id in self._active:
            self._active.remove(request.id)
        else:
            counts.requests += 1
        row = self._row(request)
        counts.ended[row.model, row.endpoint, outcome.value, reason] += 1
        if outcome is Outcome.REJECTED:
            counts.rejections[reason, label_values.priority(request.priority)] += 1
        if labels.with_tenants:
            counts.tenant_requests[labels.tenant(request.tenant), outcome.value] += 1
        return row

    def _tokens(self, request: RuntimeRequest, usage: Usage, key: Key) -> None:
        counts, labels = self.counts, self._labels
        if usage.prompt_tokens or usage.completion_tokens:
            counts.prompt_tokens[key] += usage.prompt_tokens
            counts.cached_tokens[key] += usage.cached_tokens
            counts.completion_tokens[key] += usage.completion_tokens
        if labels.with_tenants:
            tenant = labels.tenant(request.tenant)
            counts.tenant_tokens[tenant, "prompt"] += usage.prompt_tokens
            counts.tenant_tokens[tenant, "completion"] += usage.completion_tokens
            service = PROMPT_WEIGHT * usage.prompt_tokens + COMPLETION_WEIGHT * usage.completion_tokens
            counts.tenant_service[tenant, priority_class(request.priority).value] += service

    def _row(self, request: RuntimeRequest) -> _Row:
        name = (self._labels.model(request.model), request.via or request.kind, request.priority)
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = _Row(name[0], name[1].value)
        return row

    def _series(self, request: RuntimeRequest, row: _Row) -> RequestSeries:
        if row.series is None:
            key = (row.model, row.endpoint, priority_class(request.priority).value)
            row.series = self.series.setdefault(key, RequestSeries())
        return row.series
