"""What can run now, for one decision: the router over views that count its own placements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.routing.base import ReplicaView
from llm_runtime.routing.router import Router


class ReplicaSlots(Protocol):
    """A replica as far as dispatching is concerned; `runtime.replica.Replica` is one."""

    @property
    def id(self) -> str: ...

    @property
    def num_slots(self) -> int: ...

    @property
    def num_free(self) -> int:
        """Slots that can be granted now; may be negative after a replica has shrunk."""
        ...

    @property
    def num_held(self) -> int:
        """Requests that hold slots of it."""
        ...

    @property
    def is_static(self) -> bool: ...

    @property
    def ready(self) -> bool: ...

    @property
    def draining(self) -> bool: ...

    def view(self, num_placed: int) -> ReplicaView:
        """For the router; `num_placed` slots are promised in the decision under way."""
        ...


class DecisionCapacity:
    """Implements `scheduling.base.Capacity`. Made for each decision by the decision core."""

    __slots__ = ("_now", "_num_open", "_placed", "_replicas", "_router", "_views")

    def __init__(self, replicas: Iterable[ReplicaSlots], router: Router, now: float) -> None:
        self._replicas = [replica for replica in replicas if replica.ready and not replica.draining]
        self._router = router
        self._now = now
        self._placed: dict[str, int] = {}
        self._num_open = sum(replica.num_free > 0 for replica in self._replicas)
        self._views: dict[str, ReplicaView] = {}

    def place(self, request: RuntimeRequest) -> str | None:
        if not self._views:
            self._views = {replica.id: replica.view(0) for replica in self._replicas}
        chosen = self._router.choose(request, list(self._views.values()), self._now)
        if chosen is not None:
            self._note(chosen, request.num_slots)
        return chosen

    def _note(self, chosen: str, num_slots: int) -> None:
        num_placed = self._placed[chosen] = self._placed.get(chosen, 0) + num_slots
        replica = next(replica for replica in self._replicas if replica.id == chosen)
        self._views[chosen] = view = replica.view(num_placed)
        if view.num_free_slots <= 0:
            self._num_open -= 1

    @property
    def exhausted(self) -> bool:
        return self._num_open == 0

    @property
    def batch_limit(self) -> int | None:
        placed = self._placed
        limits = [r.num_free - placed.get(r.id, 0) for r in self._replicas if r.is_static]
        return max(limits) if limits else None
