"""`MetricsCollector`: counts what happens to requests. Knows no exposition format and reads no clock.

Every event costs a few additions to plain integers, and nothing is counted per token. Label values
are bounded by `labels.py`, so memory and scrape size depend on the configuration, not on clients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from llm_runtime.core.errors import (
    ConcurrencyLimited,
    LimiterUnavailable,
    LLMRuntimeError,
    NeverWithinLimit,
    RequestsLimited,
    TokensLimited,
)
from llm_runtime.core.outcome import Outcome, RequestRecord
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

_COMPLETED: Final = Outcome.COMPLETED
_REJECTED: Final = Outcome.REJECTED


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


class _End:
    """How many requests of one row ended in one way, and what they used, since somebody looked last."""

    __slots__ = (
        "cached_tokens", "completion_tokens", "estimated", "outcome", "prompt_tokens", "reason", "replica",
        "requests", "row", "settled",
    )  # fmt: skip

    def __init__(
        self, row: _Row, outcome: Outcome, reason: str, replica: str | None, estimated: bool
    ) -> None:
        self.row: Final = row
        self.outcome: Final = outcome
        self.reason: Final = reason
        self.replica: Final = replica
        self.estimated: Final = estimated
        self.requests = 0
        self.settled = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0

    def move_to(self, counts: Counts) -> None:
        """Adds everything to the counters and begins anew."""
        row, outcome, tenant = self.row, self.outcome.value, self.row.tenant
        counts.ended[row.model, row.endpoint, outcome, self.reason] += self.requests
        if self.outcome is _REJECTED:
            counts.rejections[self.reason, label_values.priority(row.priority)] += self.requests
        if tenant is not None:
            counts.tenant_requests[tenant, outcome] += self.requests
        if self.settled:
            self._move_usage_to(counts, tenant, outcome)
        self.requests = self.settled = 0
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0

    def _move_usage_to(self, counts: Counts, tenant: str | None, outcome: str) -> None:
        row, prompt, completion = self.row, self.prompt_tokens, self.completion_tokens
        if prompt or completion:
            key = (row.model, row.endpoint, "estimate" if self.estimated else "engine")
            counts.prompt_tokens[key] += prompt
            counts.cached_tokens[key] += self.cached_tokens
            counts.completion_tokens[key] += completion
        if tenant is not None:
            counts.tenant_tokens[tenant, "prompt"] += prompt
            counts.tenant_tokens[tenant, "completion"] += completion
            service = PROMPT_WEIGHT * prompt + COMPLETION_WEIGHT * completion
            counts.tenant_service[tenant, priority_class(row.priority).value] += service
        if self.replica is not None:
            counts.replica_requests[self.replica, outcome] += self.settled


class _Row:
    """What the requests of one model, endpoint, priority and, where it is a label, tenant are counted under.

    accepted: since somebody looked last. ends: by outcome, reason, replica and whether tokens are estimates.
    """

    __slots__ = ("accepted", "endpoint", "ends", "model", "priority", "series", "tenant")

    def __init__(self, model: str, endpoint: str, priority: int, tenant: str | None) -> None:
        self.model: Final = model
        self.endpoint: Final = endpoint
        self.priority: Final = priority
        self.tenant: Final = tenant
        self.series: RequestSeries | None = None
        self.ends: dict[tuple[Outcome, str, str | None, bool], _End] = {}
        self.accepted = 0

    def move_to(self, counts: Counts) -> None:
        counts.accepted[self.model, self.endpoint] += self.accepted
        self.accepted = 0


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

    A request adds to a few integers of its row and of its kind of end; the counters with their keys get
    that when somebody looks at them.
    """

    __slots__ = ("_active", "_counts", "_labels", "_new_accepted", "_new_ends", "_rows", "batches", "series")

    def __init__(
        self, models: Iterable[str], tenants: Iterable[str] = (), reasons: Iterable[str] = ()
    ) -> None:
        self._labels = Labels(models, tenants, reasons)
        # By id; a row of None is no longer current.
        self._active: dict[str, _Row | None] = {}
        self._counts = Counts()
        # Those that have something since somebody looked last.
        self._new_accepted: list[_Row] = []
        self._new_ends: list[_End] = []
        self.series: dict[Key, RequestSeries] = {}  # model, endpoint, priority class
        self._rows: dict[tuple[str, EndpointKind, int, str | None], _Row] = {}
        self.batches: dict[Key, Histogram] = {}  # replica

    @property
    def counts(self) -> Counts:
        """With all that has happened so far, and for this look only: ask again for the next."""
        counts = self._counts
        for row in self._new_accepted:
            row.move_to(counts)
        self._new_accepted.clear()
        for end in self._new_ends:
            end.move_to(counts)
        self._new_ends.clear()
        return counts

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
        self._active = dict.fromkeys(self._active)

    # ---- events

    def accepted(self, request: RuntimeRequest) -> None:
        self._active[request.id] = row = self._row(request)
        self._counts.requests += 1
        if not row.accepted:
            self._new_accepted.append(row)
        row.accepted += 1

    def rejected(self, request: RuntimeRequest, error: LLMRuntimeError) -> None:
        labels = self._labels
        self._end(self._left(request), _REJECTED, labels.error(error), None, False)
        limit = LIMITS.get(type(error))
        if limit is not None and labels.with_tenants:
            self._counts.tenant_limit_rejections[labels.tenant(request.tenant), limit] += 1

    def refused(self, endpoint: str, status: int, reason: str) -> None:
        labels = self._labels
        self._counts.refusals[
            labels.endpoint(endpoint), label_values.status(status), labels.reason(reason)
        ] += 1

    def dispatched(self, request: RuntimeRequest, replica: str, queue_wait_s: float) -> None:
        row = self._active.get(request.id) or self._row(request)
        (row.series or self._series(row)).queue_wait.observe(queue_wait_s)

    def attempt(self, request: RuntimeRequest, replica: str, result: str, *, retried: bool) -> None:
        self._counts.attempts[replica, result, "yes" if retried else "no"] += 1

    def batch(self, replica: str, num_requests: int) -> None:
        sizes = self._counts.batch_sizes
        if num_requests in sizes or len(sizes) < MAX_BATCH_SIZES:
            sizes[num_requests] += 1
        histogram = self.batches.get((replica,))
        if histogram is None:
            histogram = self.batches[(replica,)] = Histogram(BATCH_EDGES)
        histogram.observe(num_requests)

    def settled(self, record: RequestRecord) -> None:
        request, timeline, usage, outcome = record.request, record.timeline, record.usage, record.outcome
        completed = outcome is _COMPLETED
        labels = self._labels
        reason = labels.finish_reason(record.reason) if completed else labels.reason(record.reason)
        row = self._left(request)
        estimated = usage.estimated
        end = self._end(row, outcome, reason, record.replica, estimated)
        prompt_tokens, completion_tokens = usage.prompt_tokens, usage.completion_tokens
        end.settled += 1
        if prompt_tokens or completion_tokens:
            end.prompt_tokens += prompt_tokens
            end.cached_tokens += usage.cached_tokens
            end.completion_tokens += completion_tokens
        series = row.series or self._series(row)
        series.ttft.observe(timeline.ttft_s)
        if record.itl_counts is not None:
            series.itl.merge(record.itl_counts, record.itl_sum_s)
        if completed:
            series.e2e.observe(timeline.e2e_s)
        if estimated:
            return
        if request.num_slots == 1:
            series.tpot.observe(timeline.tpot_s(completion_tokens))
        if completed:
            series.prompt_tokens.observe(prompt_tokens)
            series.completion_tokens.observe(completion_tokens)

    def engine_state(self, replica: str, state: str, reason: str | None) -> None:
        self._counts.engine_state_changes[replica, state if state in ENGINE_STATES else OTHER] += 1

    def lease_suspect(self, replica: str, request_id: str) -> None:
        self._counts.suspect_leases[replica,] += 1

    # ---- parts

    def _left(self, request: RuntimeRequest) -> _Row:
        """The row of a request that ends, whether or not it had been accepted."""
        active = self._active
        if request.id not in active:
            self._counts.requests += 1
            return self._row(request)
        return active.pop(request.id) or self._row(request)

    def _end(self, row: _Row, outcome: Outcome, reason: str, replica: str | None, estimated: bool) -> _End:
        """One more."""
        key = (outcome, reason, replica, estimated)
        end = row.ends.get(key)
        if end is None:
            end = row.ends[key] = _End(row, outcome, reason, replica, estimated)
        if not end.requests:
            self._new_ends.append(end)
        end.requests += 1
        return end

    def _row(self, request: RuntimeRequest) -> _Row:
        labels = self._labels
        tenant = labels.tenant(request.tenant) if labels.with_tenants else None
        kind = request.via or request.kind
        name = (labels.model(request.model), kind, request.priority, tenant)
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = _Row(name[0], kind.value, request.priority, tenant)
        return row

    def _series(self, row: _Row) -> RequestSeries:
        if row.series is None:
            key = (row.model, row.endpoint, priority_class(row.priority).value)
            row.series = self.series.setdefault(key, RequestSeries())
        return row.series
