"""Least load: the replica that keeps the largest share of its slots free."""

from __future__ import annotations

from collections.abc import Sequence

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.routing.base import ReplicaView, RoutingPolicy


class LeastLoad(RoutingPolicy):
    """Scores by the share of slots left once the request runs there.

    Relative, so that a large replica gets proportionally more; counted with the request, so that of two
    idle replicas of different size the larger one goes first.
    """

    def score(self, request: RuntimeRequest, replicas: Sequence[ReplicaView], now: float) -> list[float]:
        return [
            max(replica.num_free_slots - request.num_slots, 0) / replica.num_slots for replica in replicas
        ]
