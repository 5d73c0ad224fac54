"""What can run now, for one decision: the router over views that count its own placements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from llm_runtime.admission.adaptive_limit import AdaptiveLimit
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.routing.base import ReplicaView
from llm_runtime.routing.router import Router
from llm_runtime.scheduling.base import Capacity, PoolSize, Room


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


class Limits:
    """Of the replicas whose number of slots in force adapts; the others' slots are all in force."""

    def __init__(self, by_replica: dict[str, AdaptiveLimit]) -> None:
        self._by_replica = by_replica
        self.any: Final = bool(by_replica)

    def of(self, replica_id: str) -> AdaptiveLimit | None:
        return self._by_replica.get(replica_id)

    def in_force(self, replica: ReplicaSlots) -> int:
        limit = self._by_replica.get(replica.id) if self.any else None
        return replica.num_slots if limit is None else min(limit.in_force, replica.num_slots)

    def num_free(self, replica: ReplicaSlots, num_slots: int = 1) -> int:
        """Slots that a request of so many could be granted. One that is wider than the limit may have an
        idle replica for itself: it could never run otherwise."""
        limit = self._by_replica.get(replica.id) if self.any else None
        if limit is None:
            return replica.num_free
        num_taken = replica.num_slots - replica.num_free
        if num_slots > limit.in_force and not num_taken:
            return replica.num_free
        return min(limit.in_force, replica.num_slots) - num_taken

    def demand(self, exceeds: bool, now: float) -> None:
        """Whether somebody waits, from now on."""
        for limit in self._by_replica.values():
            limit.demand(exceeds, now)

    def view(self, replica: ReplicaSlots, num_placed: int, num_slots: int) -> ReplicaView:
        """As `ReplicaSlots.view`, with what a request of so many slots could be granted."""
        view = replica.view(num_placed)
        if not self.any or view.id not in self._by_replica:
            return view
        if num_placed:  # so it is idle no more
            num_slots = 1
        return view.with_free(self.num_free(replica, num_slots) - num_placed)


class Vacancy(Room):
    """For the one request that finds nobody waiting: answers as a `DecisionCapacity` made at `now` would, and
    counts nothing, since its owner asks it to place no more than one. Owned by the decision core."""

    __slots__ = ("_limits", "_replicas", "_router", "now")

    def __init__(self, replicas: Mapping[str, ReplicaSlots], router: Router, limits: Limits) -> None:
        self._replicas: Final = list(replicas.values())
        self._router: Final = router
        self._limits: Final = limits
        self.now = 0.0

    def place(self, request: RuntimeRequest) -> str | None:
        limits, num_slots = self._limits, request.num_slots
        views = list[ReplicaView]()
        for replica in self._replicas:
            view = limits.view(replica, 0, num_slots) if limits.any else replica.view(0)
            if view.ready and not view.draining:
                views.append(view)
        return self._router.choose(request, views, self.now)

    @property
    def batch_limit(self) -> int | None:
        limit: int | None = None
        for replica in self._replicas:
            if replica.is_static and replica.ready and not replica.draining:
                num_free = self._limits.view(replica, 0, 1).num_free_slots
                limit = num_free if limit is None else max(limit, num_free)
        return limit


class DecisionCapacity(Capacity):
    """Made for each decision by the decision core."""

    __slots__ = ("_avoid", "_limits", "_now", "_num_open", "_placed", "_replicas", "_router", "_views")

    def __init__(
        self,
        replicas: Mapping[str, ReplicaSlots],
        router: Router,
        limits: Limits,
        now: float,
        avoid: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        """avoid: by request, replicas that are used only if there is no other, now or later."""
        self._replicas = replicas
        self._avoid = avoid
        self._router = router
        self._limits = limits
        self._now = now
        self._placed: dict[str, int] = {}
        views = [limits.view(replica, 0, 1) for replica in replicas.values()]
        self._views = {view.id: view for view in views if view.ready and not view.draining}
        self._num_open = sum([view.num_free_slots > 0 for view in self._views.values()])

    def place(self, request: RuntimeRequest) -> str | None:
        views = list(self._views.values())
        if self._limits.any and request.num_slots > 1:
            placed, replicas = self._placed, self._replicas
            limits, num_slots = self._limits, request.num_slots
            views = [limits.view(replicas[v.id], placed.get(v.id, 0), num_slots) for v in views]
        avoid = self._avoid.get(request.id)
        if avoid:
            views = [v for v in views if v.id not in avoid and v.serves(request.model)] or views
        chosen = self._router.choose(request, views, self._now)
        if chosen is not None:
            if self._limits.any:
                self._placed[chosen] = self._placed.get(chosen, 0) + request.num_slots
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
        in_force = [self._limits.in_force(self._replicas[replica_id]) for replica_id in self._views]
        return PoolSize(sum(in_force), len(in_force))

    @property
    def batch_limit(self) -> int | None:
        replicas = self._replicas
        limits = [view.num_free_slots for view in self._views.values() if replicas[view.id].is_static]
        return max(limits) if limits else None
