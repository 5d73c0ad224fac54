"""The `RoutingPolicy` seam: where a request runs. Pure functions over snapshots of our own counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from llm_runtime.core.quick import quick
from llm_runtime.core.request import RuntimeRequest


@quick
@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica at one instant. num_free_slots already counts what this decision has placed.

    accepts_batch: a static engine that is idle, or any continuous one that is not being tried out.
    on_trial: it takes one request at a time, to see whether it works again.
    resting: it has asked to be left alone for a while. models: those it has; None: all of its pool's.
    """

    id: str
    num_slots: int
    num_free_slots: int
    ready: bool
    draining: bool = False
    suspect: bool = False
    accepts_batch: bool = True
    on_trial: bool = False
    resting: bool = False
    models: frozenset[str] | None = None

    def serves(self, model: str) -> bool:
        return self.models is None or model in self.models


class RoutingPolicy(Protocol):
    def score(self, request: RuntimeRequest, replicas: Sequence[ReplicaView], now: float) -> Sequence[float]:
        """One score per replica, 0 (worst) to 1 (best). Pure."""
        ...
