"""Schedulers that tests stand in front of a preset."""

from __future__ import annotations

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.scheduling.base import (
    Capacity,
    Decision,
    Eviction,
    Head,
    Outlook,
    Placement,
    QueueSnapshot,
    Room,
    Scheduler,
    SchedulingEvent,
)


class Forwarding:
    """Implements `Scheduler` by another one; what a test has to say of it is overridden."""

    def __init__(self, inner: Scheduler) -> None:
        self.inner = inner

    def add(self, request: RuntimeRequest, now: float) -> None:
        self.inner.add(request, now)

    def start(self, request: RuntimeRequest, now: float, room: Room) -> Placement | None:
        """None: whatever a test has to say of adding and deciding is heard."""
        return None

    def remove(self, request_id: str, now: float) -> bool:
        return self.inner.remove(request_id, now)

    def observe(self, event: SchedulingEvent, now: float) -> None:
        self.inner.observe(event, now)

    def decide(self, now: float, capacity: Capacity) -> Decision:
        return self.inner.decide(now, capacity)

    def outlook(self, request: RuntimeRequest, now: float) -> Outlook:
        return self.inner.outlook(request, now)

    @property
    def prompt_weight(self) -> float:
        return self.inner.prompt_weight

    def make_room(self, num_requests: int, work: float, now: float) -> tuple[Eviction, ...]:
        return self.inner.make_room(num_requests, work, now)

    def snapshot(self, now: float) -> QueueSnapshot:
        return self.inner.snapshot(now)

    def head(self, now: float, capacity: Capacity) -> Head | None:
        return self.inner.head(now, capacity)
