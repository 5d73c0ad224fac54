"""What a scheduler needs around it in tests: requests, and a pool of replicas without any engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest, TimeLimits
from llm_runtime.scheduling.base import (
    Decision,
    Dispatched,
    PoolSize,
    RequestFinished,
    Requeued,
    Scheduler,
)


def make_request(
    request_id: str,
    *,
    priority: int = 5,
    num_slots: int = 1,
    queue_s: float | None = None,
    max_tokens: int = 4,
    tenant: str = "anonymous",
) -> RuntimeRequest:
    return RuntimeRequest(
        id=request_id,
        model="m",
        kind=EndpointKind.CHAT,
        body={},
        arrived_at=0.0,
        created=0,
        tenant=tenant,
        priority=priority,
        limits=TimeLimits(queue_s=queue_s, request_s=None),
        num_slots=num_slots,
        num_prompt_tokens=10,
        max_tokens=max_tokens,
    )


@dataclass
class FakeReplica:
    num_slots: int
    static: bool = False
    up: bool = True
    running: dict[str, RuntimeRequest] = field(default_factory=dict)

    @property
    def num_free(self) -> int:
        if not self.up or (self.static and self.running):
            return 0
        return self.num_slots - sum(request.num_slots for request in self.running.values())


class FakeCapacity:
    """`Capacity` of one decision: the fullest replica that still has room, lowest name first."""

    def __init__(self, replicas: dict[str, FakeReplica]) -> None:
        self._free = {name: replica.num_free for name, replica in replicas.items()}
        self._static = [name for name, replica in replicas.items() if replica.static]
        ready = [replica for replica in replicas.values() if replica.up]
        self._size = PoolSize(sum(replica.num_slots for replica in ready), len(ready))
        self.asked: list[str] = []

    def place(self, request: RuntimeRequest) -> str | None:
        self.asked.append(request.id)
        fitting = [(free, name) for name, free in self._free.items() if free >= request.num_slots]
        if not fitting:
            return None
        name = min(fitting)[1]
        self._free[name] -= request.num_slots
        return name

    @property
    def exhausted(self) -> bool:
        return all(free <= 0 for free in self._free.values())

    @property
    def size(self) -> PoolSize:
        return self._size

    @property
    def batch_limit(self) -> int | None:
        return max(self._free[name] for name in self._static) if self._static else None


class FakePool:
    """A scheduler and its replicas, played by hand: what the dispatcher does, without time of its own."""

    def __init__(self, scheduler: Scheduler, *replicas: FakeReplica) -> None:
        self.scheduler = scheduler
        self.replicas = {f"r{index}": replica for index, replica in enumerate(replicas)}
        self.running: dict[str, tuple[RuntimeRequest, str]] = {}
        self.requests: dict[str, RuntimeRequest] = {}
        self.queued_at: dict[str, float] = {}
        self.asked: list[str] = []

    def add(self, request: RuntimeRequest, now: float) -> None:
        self.scheduler.add(request, now)
        self.requests[request.id] = request
        self.queued_at[request.id] = now

    def decide(self, now: float) -> Decision:
        capacity = FakeCapacity(self.replicas)
        decision = self.scheduler.decide(now, capacity)
        self.asked = capacity.asked
        for placement in decision.dispatch:
            request = self.requests[placement.request_id]
            self.replicas[placement.replica].running[request.id] = request
            self.running[request.id] = (request, placement.replica)
            self.scheduler.observe(Dispatched(request.id, placement.replica), now)
        return decision

    def dispatch(self, now: float) -> list[str]:
        return [placement.request_id for placement in self.decide(now).dispatch]

    def finish(self, request_id: str, now: float) -> None:
        self.end(request_id, None, now)

    def end(self, request_id: str, usage: Usage | None, now: float) -> None:
        self._leave(request_id)
        self.scheduler.observe(RequestFinished(request_id, usage), now)

    def requeue(self, request_id: str, now: float) -> None:
        request = self._leave(request_id)
        self.scheduler.observe(Requeued(request, self.queued_at[request_id]), now)

    def _leave(self, request_id: str) -> RuntimeRequest:
        request, replica = self.running.pop(request_id)
        del self.replicas[replica].running[request_id]
        return request
