"""A replica as the runtime counts it: one backend instance and the slots its leases hold."""

from __future__ import annotations

from llm_runtime.core.lease import Lease
from llm_runtime.engines.base import Backend, BackendState, BackendStatus, Batching
from llm_runtime.routing.base import ReplicaView
from llm_runtime.routing.breaker import BreakerRules
from llm_runtime.runtime.replica_health import ReplicaHealth

_LEFT_ALONE = BackendStatus(
    BackendState.CRASHED, "the upstream failed too many requests in a row", fail_fast=True
)


class Replica:
    """Owned by the dispatcher. Slots are counted by leases, never by what the engine says is free."""

    __slots__ = (
        "_models", "_models_of", "_suspects", "backend", "draining", "health", "id", "is_static", "leases",
        "num_slots", "num_taken",
    )  # fmt: skip

    def __init__(self, replica_id: str, backend: Backend, rules: BreakerRules | None = None) -> None:
        """rules: of its breaker; None: none."""
        self.id = replica_id
        self.backend = backend
        self.num_slots = backend.info.num_slots
        self.is_static = backend.info.batching is Batching.STATIC
        self.leases: set[Lease] = set()
        self._suspects: set[Lease] = set()
        self.num_taken = 0
        self.draining = False
        self.health = ReplicaHealth(rules)
        self._models: frozenset[str] | None = None
        self._models_of: tuple[str, ...] | None = None

    @property
    def ready(self) -> bool:
        return self.backend.status.state is BackendState.READY and not self.health.is_open

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
    def num_held(self) -> int:
        return len(self.leases)

    @property
    def suspect(self) -> bool:
        return bool(self._suspects)

    def hold(self, lease: Lease) -> None:
        self.leases.add(lease)
        self.num_taken += lease.num_slots
        self.health.granted(lease)

    def suspected(self, lease: Lease) -> None:
        """It does not come free although the engine was asked to stop."""
        self._suspects.add(lease)

    def release(self, lease: Lease) -> None:
        self._suspects.discard(lease)
        self.leases.remove(lease)
        self.num_taken -= lease.num_slots

    def view(self, num_placed: int) -> ReplicaView:
        """The replica for the router; `num_placed` slots are promised in the decision under way."""
        return ReplicaView(
            id=self.id,
            num_slots=self.num_slots,
            num_free_slots=self.num_free - num_placed,
            ready=self.ready,
            draining=self.draining,
            suspect=self.suspect,
            accepts_batch=(not self.is_static or self.num_taken == 0) and self.health.accepts,
            on_trial=self.health.on_trial,
            resting=self.health.resting,
            models=self.models,
        )

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
