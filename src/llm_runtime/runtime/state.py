"""The runtime as telemetry reads it: `telemetry.base.RuntimeState` over the pools."""

from __future__ import annotations

from llm_runtime.core.request import PriorityClass
from llm_runtime.engines.base import BackendState
from llm_runtime.runtime.pools import Pool
from llm_runtime.runtime.queue_report import PredictedWait, unknown_wait
from llm_runtime.runtime.runtime import Runtime
from llm_runtime.telemetry.base import PoolReading, ReplicaReading, RuntimeReading


class StateReader:
    """Read on the loop's thread at every scrape."""

    def __init__(self, runtime: Runtime, predicted_wait: PredictedWait = unknown_wait) -> None:
        self._runtime = runtime
        self._predicted_wait = predicted_wait

    def reading(self) -> RuntimeReading:
        runtime = self._runtime
        readiness = runtime.readiness()
        return RuntimeReading(
            ready=readiness.ready,
            reason=readiness.reason,
            draining=runtime.draining,
            replicas=tuple(reading for pool in runtime.pools for reading in _replicas(pool)),
            pools=tuple(self._pool(pool) for pool in runtime.pools),
        )

    def _pool(self, pool: Pool) -> PoolReading:
        snapshot, head = pool.dispatcher.snapshot(), pool.dispatcher.head()
        waits = {cls.value: self._predicted_wait(pool, cls) for cls in PriorityClass}
        return PoolReading(
            model=pool.model,
            num_waiting=snapshot.num_waiting,
            num_waiting_tokens=snapshot.num_waiting_tokens,
            oldest_wait_s=snapshot.oldest_wait_s,
            waiting_by_class=snapshot.waiting_by_class,
            waiting_by_flow={
                (flow.cls.value, flow.tenant): waiting.num_requests
                for flow, waiting in pool.dispatcher.flows.items()
            },
            head_reason=None if head is None else head.reason,
            predicted_wait_s={name: wait_s for name, wait_s in waits.items() if wait_s is not None},
        )


def _replicas(pool: Pool) -> list[ReplicaReading]:
    return [
        ReplicaReading(
            replica=replica.id,
            model=pool.model,
            state=replica.backend.status.state.value,
            num_slots=replica.num_slots,
            num_free_slots=replica.num_free if replica.ready else 0,
            num_running=len(replica.leases),
            suspect=replica.suspect,
        )
        for replica in pool.dispatcher.replicas.values()
        if replica.backend.status.state is not BackendState.ABSENT
    ]
