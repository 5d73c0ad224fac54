"""Every metric the server exposes: its name, meaning, labels and where its values come from.

One list for all exposition formats. Names follow Prometheus's conventions: base units, `_total` on
counters, no colon. A family's samples are collected at once, so that one scrape is one moment for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from llm_runtime import __version__
from llm_runtime.telemetry.base import (
    BREAKER_STATES,
    ENGINE_STATES,
    HEAD_REASONS,
    PoolReading,
    RuntimeReading,
    RuntimeState,
    SharedLimits,
)
from llm_runtime.telemetry.gpu import NvidiaSmiSampler
from llm_runtime.telemetry.gpu_reading import Gpu
from llm_runtime.telemetry.histogram import Histogram
from llm_runtime.telemetry.loop_lag import LoopLag
from llm_runtime.telemetry.metrics import Key, MetricsCollector, RequestSeries

PREFIX = "llm_runtime_"
BYTES_PER_MB = 1 << 20

Value = float | int | Histogram
Samples = Sequence[tuple[Key, Value]]


@dataclass(frozen=True, slots=True)
class Sources:
    """What a scrape looks at. None: there is none, and its metrics are absent."""

    metrics: MetricsCollector
    runtime: RuntimeState | None = None
    gpu: NvidiaSmiSampler | None = None
    loop_lag: LoopLag | None = None
    shared_limits: SharedLimits | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """name: complete, but for the `_total` of a counter. Each sample: label values, then the value."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]
    samples: Samples


REQUEST = ("model", "endpoint")
SERIES = (*REQUEST, "priority_class")
TOKENS = (*REQUEST, "source")


def collect(sources: Sources) -> Iterator[Family]:
    """All families, in a stable order."""
    yield _gauge("build_info", "Version of the server; the value is always 1.", ("version",),
                 [((__version__,), 1)])  # fmt: skip
    yield from _counters(sources.metrics)
    yield from _distributions(sources.metrics)
    if sources.runtime is not None:
        reading = sources.runtime.reading()
        yield from _levels(reading)
        yield from _queues(reading.pools, sources.metrics)
    if sources.shared_limits is not None:
        yield _gauge("tenant_limits_shared", "1 while tenants' limits hold for all servers together.", (),
                     [((), int(sources.shared_limits.shared))])  # fmt: skip
    if sources.loop_lag is not None:
        yield from _loop(sources.loop_lag)
    if sources.gpu is not None:
        yield from _gpus(sources.gpu)


def _counters(metrics: MetricsCollector) -> Iterator[Family]:
    counts = metrics.counts
    yield _gauge("requests_active", "Requests accepted and not ended, waiting or running.", (),
                 [((), metrics.num_active)])  # fmt: skip
    rows: list[tuple[str, str, tuple[str, ...], Mapping[Key, int]]] = [
        ("requests_accepted", "Requests that passed the admission gates.", REQUEST, counts.accepted),
        ("requests", "Requests that ended, by outcome and finish or error reason; rejected ones included.",
         (*REQUEST, "outcome", "reason"), counts.ended),
        ("rejections", "Requests refused by a limit before they were queued, or while the server drains.",
         ("reason", "priority"), counts.rejections),
        ("refusals", "Calls answered with an error before they became a request.",
         ("endpoint", "status", "reason"), counts.refusals),
        ("prompt_tokens", "Prompt tokens processed, as the engine counted them or as estimated.",
         TOKENS, counts.prompt_tokens),
        ("cached_prompt_tokens", "Prompt tokens the engine took from its prefix cache.",
         TOKENS, counts.cached_tokens),
        ("completion_tokens", "Tokens generated, also for requests that did not complete.",
         TOKENS, counts.completion_tokens),
        ("replica_requests", "Requests that ended after a replica had taken them.",
         ("replica", "outcome"), counts.replica_requests),
        ("attempts", "What replicas made of the requests they were given, each attempt by itself; retried: "
         "the request was given to an engine once more.", ("replica", "result", "retried"), counts.attempts),
        ("engine_state_changes", "Changes of an engine's state, by the new state.",
         ("replica", "state"), counts.engine_state_changes),
        ("suspect_leases", "Cancelled requests whose slots the engine did not confirm as free in time.",
         ("replica",), counts.suspect_leases),
    ]  # fmt: skip
    if metrics.has_tenants:
        rows += [
            ("tenant_requests", "Requests that ended, by tenant.", ("tenant", "outcome"),
             counts.tenant_requests),
            ("tenant_tokens", "Tokens used, by tenant; type is prompt or completion.", ("tenant", "type"),
             counts.tenant_tokens),
            ("tenant_service_tokens", "Tokens as `fair` weighs them: prompt 1, generated 2.",
             ("tenant", "priority_class"), counts.tenant_service),
            ("tenant_limit_rejections", "Requests refused by a limit of their tenant, by the limit.",
             ("tenant", "limit"), counts.tenant_limit_rejections),
        ]  # fmt: skip
    for name, text, labels, values in rows:
        yield Family(PREFIX + name, "counter", text, labels, list(values.items()))


def _distributions(metrics: MetricsCollector) -> Iterator[Family]:
    rows: list[tuple[str, str, Callable[[RequestSeries], Histogram]]] = [
        ("queue_wait_seconds", "From entering the queue to dispatch.", attrgetter("queue_wait")),
        ("time_to_first_token_seconds", "From arrival to the first token, queue wait included.",
         attrgetter("ttft")),
        ("inter_token_latency_seconds", "Gaps between reads from the engine that brought tokens.",
         attrgetter("itl")),
        ("time_per_output_token_seconds", "Decode time by tokens after the first, one value per request.",
         attrgetter("tpot")),
        ("request_duration_seconds", "From arrival to the last byte, of completed requests.",
         attrgetter("e2e")),
        ("request_prompt_tokens", "Prompt tokens of a completed request, as the engine counted them.",
         attrgetter("prompt_tokens")),
        ("request_completion_tokens", "Generated tokens of a completed request, as the engine counted them.",
         attrgetter("completion_tokens")),
    ]  # fmt: skip
    series = list(metrics.series.items())
    for name, text, pick in rows:
        yield _histogram(name, text, SERIES, [(key, pick(one)) for key, one in series])
    yield _histogram("batch_size_requests", "Requests handed to a static engine as one batch.",
                     ("replica",), list(metrics.batches.items()))  # fmt: skip


def _levels(now: RuntimeReading) -> Iterator[Family]:
    yield _gauge("ready", "1 while the server can serve every model.", (), [((), int(now.ready))])
    yield _gauge("draining", "1 once the server takes no new requests.", (), [((), int(now.draining))])
    waiting: dict[Key, int] = {}
    tokens: dict[Key, int] = {}
    oldest: dict[Key, float] = {}
    by_class: dict[Key, int] = {}
    predicted: dict[Key, float] = {}
    promised: dict[Key, int] = {}
    promises: dict[Key, int] = {}
    for pool in now.pools:
        key = (pool.model,)
        waiting[key] = waiting.get(key, 0) + pool.num_waiting
        tokens[key] = tokens.get(key, 0) + pool.num_waiting_tokens
        oldest[key] = max(oldest.get(key, 0.0), pool.oldest_wait_s)
        for name, number in pool.waiting_by_class.items():
            by_class[pool.model, name] = by_class.get((pool.model, name), 0) + number
        for name, wait_s in pool.predicted_wait_s.items():
            predicted[pool.model, name] = max(predicted.get((pool.model, name), 0.0), wait_s)
        promised[key] = promised.get(key, 0) + pool.num_promised
        for name, number in pool.promises.items():
            promises[pool.model, name] = promises.get((pool.model, name), 0) + number
    yield _gauge("requests_waiting", "Requests in the queue.", ("model",), list(waiting.items()))
    yield _gauge("requests_waiting_by_class", "Requests in the queue, by priority class.",
                 ("model", "priority_class"), list(by_class.items()))  # fmt: skip
    yield _gauge("tokens_waiting", "Prompt estimates and token caps of the requests in the queue.",
                 ("model",), list(tokens.items()))  # fmt: skip
    yield _gauge("oldest_wait_seconds", "How long the longest waiting request has been in the queue.",
                 ("model",), list(oldest.items()))  # fmt: skip
    yield _gauge("predicted_wait_seconds",
                 "How long a request would wait that came now, by priority class; absent while unknown.",
                 ("model", "priority_class"), list(predicted.items()))  # fmt: skip
    yield _gauge("promised_places", "Places kept for refused clients that were told when to return.",
                 ("model",), list(promised.items()))  # fmt: skip
    yield Family(PREFIX + "promises", "counter",
                 "Places that clients were told of: kept (let in on return), broken (told again), lapsed.",
                 ("model", "outcome"), list(promises.items()))  # fmt: skip
    replica = ("model", "replica")
    keys = [(one.model, one.replica) for one in now.replicas]
    rows: list[tuple[str, str, Iterable[int]]] = [
        ("requests_running", "Requests an engine is working on.", (r.num_running for r in now.replicas)),
        ("slots", "Sequences the engine can work on at once.", (r.num_slots for r in now.replicas)),
        ("slots_in_force", "Slots that may be held; fewer than there are where the limit adapts.",
         (r.num_usable_slots for r in now.replicas)),
        ("slots_free", "Slots that can be granted now.", (r.num_free_slots for r in now.replicas)),
        ("engine_up", "1 while the engine answers and takes work.",
         (int(r.state == "ready") for r in now.replicas)),
        ("replica_suspect", "1 while slots of a cancelled request are not confirmed free.",
         (int(r.suspect) for r in now.replicas)),
        ("replica_resting", "1 while it is used only if there is no other, because it asked for a pause.",
         (int(r.resting) for r in now.replicas)),
    ]  # fmt: skip
    for name, text, values in rows:
        yield _gauge(name, text, replica, list(zip(keys, values, strict=True)))
    states = [
        ((one.model, one.replica, state), int(one.state == state))
        for one in now.replicas
        for state in ENGINE_STATES
    ]
    yield _gauge("engine_state", "1 for the state the engine is in, 0 for the others.",
                 (*replica, "state"), states)  # fmt: skip
    breakers = [
        ((one.model, one.replica, state), int(one.breaker == state))
        for one in now.replicas
        for state in BREAKER_STATES
    ]
    yield _gauge("replica_breaker", "1 for the state of the replica's circuit breaker, 0 for the others.",
                 (*replica, "state"), breakers)  # fmt: skip


def _queues(pools: Iterable[PoolReading], metrics: MetricsCollector) -> Iterator[Family]:
    """What explains the queues: whose requests wait, and why the first does."""
    pools = list(pools)
    # Who was served once keeps a series, so that a line in a graph goes to 0 and does not just end.
    served = metrics.counts.tenant_service
    by_tenant: dict[Key, int] = {(pool.model, cls, tenant): 0 for pool in pools for tenant, cls in served}
    for pool in pools:
        for (cls, name), number in pool.waiting_by_flow.items():
            key = (pool.model, cls, metrics.tenant(name))
            by_tenant[key] = by_tenant.get(key, 0) + number
    if metrics.has_tenants:
        yield _gauge("tenant_requests_waiting", "Requests in the queue, by class and tenant.",
                     ("model", "priority_class", "tenant"), list(by_tenant.items()))  # fmt: skip
    heads = {(pool.model, reason): 0 for pool in pools for reason in HEAD_REASONS}
    for pool in pools:
        if pool.head_reason is not None:
            heads[pool.model, pool.head_reason] = 1
    yield _gauge("queue_head_waits", "1 for what keeps the first in the queue waiting; all 0: nobody waits.",
                 ("model", "reason"), list(heads.items()))  # fmt: skip


def _loop(lag: LoopLag) -> Iterator[Family]:
    yield _gauge("event_loop_lag_seconds", "How late the event loop was at the last measurement.", (),
                 [((), lag.last_s)])  # fmt: skip
    yield _gauge("event_loop_lag_max_seconds", "Largest lag of the last half to whole minute.", (),
                 [((), lag.max_s)])  # fmt: skip


def _gpus(sampler: NvidiaSmiSampler) -> Iterator[Family]:
    reading = sampler.latest
    yield _gauge("gpu_up", "1 while GPU numbers can be read.", (), [((), int(reading.available))])
    rows: list[tuple[str, str, Callable[[Gpu], float | None], float]] = [
        ("gpu_memory_used_bytes", "Memory in use.", attrgetter("memory_used_mb"), BYTES_PER_MB),
        ("gpu_memory_size_bytes", "Memory installed.", attrgetter("memory_total_mb"), BYTES_PER_MB),
        (
            "gpu_utilization_ratio",
            "Share of time in which a kernel ran.",
            attrgetter("utilization_pct"),
            0.01,
        ),
        ("gpu_temperature_celsius", "Temperature.", attrgetter("temperature_c"), 1),
        ("gpu_power_watts", "Power drawn.", attrgetter("power_w"), 1),
    ]
    for name, text, pick, unit in rows:
        samples = [
            ((str(gpu.index),), value * unit) for gpu in reading.gpus if (value := pick(gpu)) is not None
        ]
        yield _gauge(name, text, ("gpu",), samples)


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Family:
    return Family(PREFIX + name, "gauge", text, labels, samples)


def _histogram(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Family:
    return Family(PREFIX + name, "histogram", text, labels, samples)
