"""A replica as the runtime counts it: one backend instance and the slots its leases hold."""

from __future__ import annotations

from typing import Final

from llm_runtime.core.lease import Lease
from llm_runtime.engines.base import Backend, BackendState, BackendStatus, Batching
from llm_runtime.routing.base import ReplicaView
from llm_runtime.routing.breaker import BreakerRules, BreakerState
from llm_runtime.runtime.capacity import ReplicaSlots
from llm_runtime.runtime.replica_health import ReplicaHealth

_LEFT_ALONE = BackendStatus(
    BackendState.CRASHED, "the upstream failed too many requests in a row", fail_fast=True
)


_READY: Final = BackendState.READY
_OPEN: Final = BreakerState.OPEN
_HALF_OPEN: Final = BreakerState.HALF_OPEN


class Replica(ReplicaSlots):
    """Owned by the dispatcher. Slots are counted by leases, never by what the engine says is free.

    num_held: leases that hold slots of it.
    """

    __slots__ = (
        "_models", "_models_of", "_suspects", "backend", "draining", "health", "id", "is_static", "num_held",
        "num_slots", "num_taken", "on_suspect",
    )  # fmt: skip

    id: str
    num_slots: int
    num_held: int
    is_static: bool
    draining: bool

    def __init__(self, replica_id: str, backend: Backend, rules: BreakerRules | None = None) -> None:
        """rules: of its breaker; None: none."""
        self.id = replica_id
        self.backend = backend
        self.num_slots = backend.info.num_slots
        self.is_static = backend.info.batching is Batching.STATIC
        self._suspects: set[Lease] = set()
        self.num_held = 0
        self.num_taken = 0
        self.draining = False
        self.health = ReplicaHealth(rules)
        self._models: frozenset[str] | None = None
        self._models_of: tuple[str, ...] | None = None
        self.on_suspect: Final = self.suspected  # for every lease, so it is made once

    @property
    def ready(self) -> bool:
        return self.backend.status.state is _READY and self.health.breaker.state is not _OPEN

    @property
    def status(self) -> BackendStatus:
        """The engine's own, unless it is left alone for its failures."""
        status = self.backend.status
        return _LEFT_ALONE if status.state is BackendState.READY and self.health.is_open else status

    @property
    def num_free(self) -> int:
        """Slots that can be granted now; a static engine takes nothing while its batch runs."""
        if self.is_static and self.num_taken:
            return 0
        return self.num_slots - self.num_taken

    @property
    def suspect(self) -> bool:
        return bool(self._suspects)

    def hold(self, lease: Lease) -> None:
        self.num_held += 1
        self.num_taken += lease.num_slots
        health = self.health
        if health.breaker.state is _HALF_OPEN:
            health.granted(lease)

    def suspected(self, lease: Lease) -> None:
        """It does not come free although the engine was asked to stop."""
        self._suspects.add(lease)

    def release(self, lease: Lease) -> None:
        self._suspects.discard(lease)
        self.num_held -= 1
        self.num_taken -= lease.num_slots

    def view(self, num_placed: int) -> ReplicaView:
        """The replica for the router; `num_placed` slots are promised in the decision under way."""
        # For every request, so it asks as little as it can.
        health, num_taken, num_slots = self.health, self.num_taken, self.num_slots
        breaker, is_busy = health.breaker.state, self.is_static and num_taken > 0
        num_free = (0 if is_busy else num_slots - num_taken) - num_placed
        ready = breaker is not _OPEN and self.backend.status.state is _READY
        names = self.backend.info.models
        models = self._models if names is self._models_of else self.models
        return ReplicaView(
            self.id, num_slots, num_free, ready, self.draining, bool(self._suspects),
            not is_busy and health.accepts, breaker is _HALF_OPEN, health.rest_until is not None, models,
        )  # fmt: skip

    def serves(self, model: str) -> bool:
        models = self.models
        return models is None or model in models

    @property
    def models(self) -> frozenset[str] | None:
        """Where they may differ from those of other replicas of the pool."""
        names = self.backend.info.models
        if names is not self._models_of:
            self._models_of = names
            self._models = None if names is None else frozenset(names)
        return self._models
