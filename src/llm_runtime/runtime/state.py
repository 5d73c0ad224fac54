"""The runtime as telemetry reads it: `telemetry.base.RuntimeState` over the pools."""

from __future__ import annotations

from llm_runtime.engines.base import BackendState
from llm_runtime.runtime.pools import Pool
from llm_runtime.runtime.replica import Replica
from llm_runtime.runtime.runtime import Runtime
from llm_runtime.telemetry.base import PoolReading, ReplicaReading, RuntimeReading


class StateReader:
    """Read on the loop's thread at every scrape."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def reading(self) -> RuntimeReading:
        runtime = self._runtime
        readiness = runtime.readiness()
        return RuntimeReading(
            ready=readiness.ready,
            reason=readiness.reason,
            draining=runtime.draining,
            replicas=tuple(reading for pool in runtime.pools for reading in _replicas(pool)),
            pools=tuple(_pool(pool) for pool in runtime.pools),
        )


def _pool(pool: Pool) -> PoolReading:
    dispatcher = pool.dispatcher
    snapshot, head, promises = dispatcher.snapshot(), dispatcher.head(), dispatcher.promises
    waits = dispatcher.predicted_waits()
    return PoolReading(
        model=pool.model,
        num_waiting=snapshot.num_waiting,
        num_waiting_tokens=snapshot.num_waiting_tokens,
        oldest_wait_s=snapshot.oldest_wait_s,
        waiting_by_class=snapshot.waiting_by_class,
        waiting_by_flow={
            (flow.cls.value, flow.tenant): waiting.num_requests for flow, waiting in dispatcher.flows.items()
        },
        head_reason=None if head is None else head.reason,
        predicted_wait_s={cls: wait_s for cls, wait_s in waits.items() if wait_s is not None},
        num_promised=promises.outstanding,
        promises={"kept": promises.kept, "broken": promises.broken, "lapsed": promises.lapsed},
    )


def _replicas(pool: Pool) -> list[ReplicaReading]:
    return [
        ReplicaReading(
            replica=replica.id,
            model=pool.model,
            state=replica.status.state.value,
            num_slots=replica.num_slots,
            num_free_slots=_num_free(pool, replica),
            num_running=replica.num_held,
            suspect=replica.suspect,
            breaker=replica.health.breaker.state.value,
            resting=replica.health.resting,
            num_slots_in_force=pool.dispatcher.in_force(replica.id),
        )
        for replica in pool.dispatcher.replicas.values()
        if replica.backend.status.state is not BackendState.ABSENT
    ]


def _num_free(pool: Pool, replica: Replica) -> int:
    if not replica.ready:
        return 0
    return max(0, min(replica.num_free, pool.dispatcher.in_force(replica.id) - replica.num_taken))
