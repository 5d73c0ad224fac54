"""Requests, timelines and records with exact times, for telemetry tests."""

from __future__ import annotations

from typing import Any

from llm_runtime.core.errors import QueueFull, RateLimited
from llm_runtime.core.outcome import Outcome, RequestRecord, Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.core.timeline import Timeline
from llm_runtime.telemetry.base import PoolReading, ReplicaReading, RuntimeReading
from llm_runtime.telemetry.families import Sources
from llm_runtime.telemetry.gpu import NvidiaSmiSampler
from llm_runtime.telemetry.gpu_reading import Gpu
from llm_runtime.telemetry.loop_lag import LoopLag
from llm_runtime.telemetry.metrics import MetricsCollector

MARKER = "PROMPT-MARKER"


def request(request_id: str = "req-1", model: str = "tiny", **fields: Any) -> RuntimeRequest:
    kind = fields.pop("kind", EndpointKind.CHAT)
    body = {"messages": [{"role": "user", "content": MARKER}]}
    return RuntimeRequest(
        id=request_id, model=model, kind=kind, body=body, arrived_at=10.0, created=0, **fields
    )


def timeline(
    *,
    queue_s: float | None = 0.25,
    prefill_s: float | None = 0.5,
    gaps_s: tuple[float, ...] = (0.125, 0.125),
    total_s: float | None = 2.0,
) -> Timeline:
    """Queued on arrival at 10.0; a prefill of None means that no token came."""
    line = Timeline(10.0)
    if queue_s is not None:
        line.queued_at, line.dispatched_at = 10.0, 10.0 + queue_s
        if prefill_s is not None:
            now = 10.0 + queue_s + prefill_s
            line.token(now)
            for gap in gaps_s:
                now += gap
                line.token(now)
    if total_s is not None:
        line.finished_at = 10.0 + total_s
    return line


def record(
    of: RuntimeRequest | None = None,
    *,
    outcome: Outcome = Outcome.COMPLETED,
    reason: str = "stop",
    usage: Usage | None = None,
    line: Timeline | None = None,
    replica: str | None = "mock-0",
) -> RequestRecord:
    line = line if line is not None else timeline()
    return RequestRecord(
        request=of if of is not None else request(),
        outcome=outcome,
        reason=reason,
        usage=usage if usage is not None else Usage(prompt_tokens=20, completion_tokens=3, cached_tokens=4),
        timeline=line,
        replica=replica,
        itl_counts=tuple(line.itl_counts) if line.itl_counts is not None else None,
        itl_sum_s=line.itl_sum_s,
    )


class FixedRuntime:
    """A runtime that stands still."""

    def __init__(self, reading: RuntimeReading) -> None:
        self._reading = reading

    def reading(self) -> RuntimeReading:
        return self._reading


class FixedGpu:
    """A reader whose devices never change."""

    source = "nvml"

    def __init__(self, *gpus: Gpu) -> None:
        self._gpus = gpus

    def read(self) -> tuple[Gpu, ...]:
        return self._gpus

    def close(self) -> None:
        """Nothing was started."""


READING = RuntimeReading(
    ready=True,
    replicas=(
        ReplicaReading(
            "mock-0", "tiny", "ready", num_slots=8, num_free_slots=3, num_running=3, num_slots_in_force=6
        ),
        ReplicaReading("mock-1", "tiny", "crashed", 8, 0, 0, suspect=True),
    ),
    pools=(
        PoolReading(
            "tiny",
            2,
            num_waiting_tokens=640,
            oldest_wait_s=1.5,
            waiting_by_class={"batch": 2},
            predicted_wait_s={"standard": 0.25, "batch": 4.5},
            num_promised=3,
            promises={"kept": 7, "broken": 1, "lapsed": 2},
        ),
        PoolReading("tiny", 1, num_waiting_tokens=10, oldest_wait_s=0.5, waiting_by_class={"standard": 1}),
    ),
)


def scenario() -> Sources:
    """One of everything, with numbers that are easy to check by hand."""
    metrics = MetricsCollector(["tiny", 'quo"ted\\model\nx'], tenants=["acme"])
    first = request("a", tenant="acme")
    metrics.accepted(first)
    metrics.dispatched(first, "mock-0", 0.25)
    metrics.settled(record(first))
    second = request("b", tenant="nobody", priority=8, kind=EndpointKind.COMPLETIONS)
    metrics.accepted(second)
    late = timeline(queue_s=None, total_s=30.0)
    metrics.settled(
        record(
            second, outcome=Outcome.EVICTED, reason="queue_timeout", usage=Usage(), line=late, replica=None
        )
    )
    third = request("c", model='quo"ted\\model\nx', priority=0, num_slots=2)
    metrics.accepted(third)
    metrics.dispatched(third, "mock-1", 0.0)
    metrics.settled(
        record(
            third,
            outcome=Outcome.FAILED,
            reason="backend_crashed",
            usage=Usage(prompt_tokens=7, completion_tokens=2, estimated=True),
            replica="mock-1",
        )
    )
    metrics.accepted(request("d"))
    metrics.rejected(request("e", priority=9), QueueFull("full"))
    metrics.rejected(request("f", model="typo"), RateLimited("slow down"))
    metrics.refused("chat", 400, "invalid_request")
    for size in (1, 4, 4, 7):
        metrics.batch("mock-0", size)
    for state in ("starting", "ready", "crashed"):
        metrics.engine_state("mock-1", state, None)
    metrics.lease_suspect("mock-1", "c")
    lag = LoopLag(now=lambda: 0.0)
    lag.record(planned_at=1.0, now=1.25)
    lag.record(planned_at=2.0, now=2.0)
    gpu = NvidiaSmiSampler(
        1.0,
        [
            FixedGpu(
                Gpu(0, "GPU-1", "Some GPU", 1024, 2048, 50, 40, 100.5), Gpu(1, None, None, None, None, None)
            )
        ],
    )
    gpu.latest = gpu.read()
    return Sources(metrics, FixedRuntime(READING), gpu, lag)
