"""What can run now, for one decision: the router over views that count its own placements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Protocol

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.routing.base import ReplicaView
from llm_runtime.routing.router import Router
from llm_runtime.scheduling.base import PoolSize


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

    __slots__ = ("_avoid", "_now", "_num_open", "_replicas", "_router", "_views")

    def __init__(
        self,
        replicas: Mapping[str, ReplicaSlots],
        router: Router,
        now: float,
        avoid: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        """avoid: by request, replicas that are used only if there is no other, now or later."""
        self._replicas = replicas
        self._avoid = avoid
        self._router = router
        self._now = now
        views = [replica.view(0) for replica in replicas.values()]
        self._views = {view.id: view for view in views if view.ready and not view.draining}
        self._num_open = sum([view.num_free_slots > 0 for view in self._views.values()])

    def place(self, request: RuntimeRequest) -> str | None:
        views = list(self._views.values())
        avoid = self._avoid.get(request.id)
        if avoid:
            views = [v for v in views if v.id not in avoid and v.serves(request.model)] or views
        chosen = self._router.choose(request, views, self._now)
        if chosen is not None:
            before = self._views[chosen]
            free = before.num_free_slots - request.num_slots
            self._views[chosen] = ReplicaView(
                before.id, before.num_slots, free, before.ready, before.draining, before.suspect,
                before.accepts_batch and not before.on_trial, before.on_trial, before.resting, before.models,
            )  # fmt: skip
            if free <= 0:
                self._num_open -= 1
        return chosen

    @property
    def exhausted(self) -> bool:
        return self._num_open == 0

    @property
    def size(self) -> PoolSize:
        return PoolSize(sum(view.num_slots for view in self._views.values()), len(self._views))

    @property
    def batch_limit(self) -> int | None:
        replicas = self._replicas
        limits = [view.num_free_slots for view in self._views.values() if replicas[view.id].is_static]
        return max(limits) if limits else None
