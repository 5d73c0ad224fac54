"""A replica in the simulator: an engine model and the slots that its runs hold."""

from __future__ import annotations

from collections.abc import Sequence

from llm_runtime.bench.sim.config import EngineModel, ReplicaConfig, StaticModel
from llm_runtime.bench.sim.continuous import ContinuousEngine
from llm_runtime.bench.sim.engine import Engine
from llm_runtime.bench.sim.job import Run
from llm_runtime.bench.sim.static_batch import StaticEngine
from llm_runtime.bench.sim.step_log import StepLog
from llm_runtime.routing.base import ReplicaView


def build_engine(model: EngineModel, *, keep_log: bool) -> Engine:
    log = StepLog() if keep_log else None
    return StaticEngine(model, log) if isinstance(model, StaticModel) else ContinuousEngine(model, log)


class SimReplica:
    """Implements `runtime.capacity.ReplicaSlots`, as `runtime.replica.Replica` does for real engines.

    num_slots: that the gateway may take, engine_slots: that there are.
    refuses: it answers every start with a refusal, after refusal_delay_s; refusing: those it has not
    answered yet. event_at: the instant for which an event of its engine is pending.
    """

    draining = False

    __slots__ = (
        "_view", "engine", "engine_slots", "event_at", "id", "is_static", "num_held", "num_slots",
        "num_taken", "ready", "refusal_delay_s", "refuses", "refusing",
    )  # fmt: skip

    def __init__(self, replica_id: str, config: ReplicaConfig, *, keep_log: bool) -> None:
        self.id = replica_id
        self.engine = build_engine(config.model, keep_log=keep_log)
        self.is_static = isinstance(config.model, StaticModel)
        self.num_slots = config.num_slots
        self.engine_slots = config.model.num_slots
        self.num_taken = 0
        self.num_held = 0
        self.ready = True
        self.refuses = False
        self.refusing: set[Run] = set()
        self.refusal_delay_s = 0.0
        self.event_at: float | None = None
        self._view: ReplicaView | None = None

    @property
    def num_free(self) -> int:
        if self.is_static and self.num_taken:
            return 0
        return self.num_slots - self.num_taken

    def hold(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self.num_taken += run.num_slots
            self.num_held += 1
        self._view = None

    def release(self, run: Run) -> None:
        self.num_taken -= run.num_slots
        self.num_held -= 1
        self._view = None

    def get_ready(self, ready: bool) -> None:
        self.ready = ready
        self._view = None

    def view(self, num_placed: int) -> ReplicaView:
        if num_placed:
            return self._seen(self.num_free - num_placed)
        view = self._view
        if view is None:
            view = self._view = self._seen(self.num_free)
        return view

    def _seen(self, num_free: int) -> ReplicaView:
        return ReplicaView(
            id=self.id,
            num_slots=self.num_slots,
            num_free_slots=num_free,
            ready=self.ready,
            accepts_batch=not self.is_static or self.num_taken == 0,
        )
