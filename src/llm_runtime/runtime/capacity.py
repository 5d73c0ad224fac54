"""What can run now, for one decision: the router over views that count its own placements."""

from __future__ import annotations

from collections.abc import Iterable

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.routing.router import Router
from llm_runtime.runtime.replica import Replica


class DecisionCapacity:
    """Implements `scheduling.base.Capacity`. Made for each decision by the dispatcher."""

    __slots__ = ("_now", "_placed", "_replicas", "_router")

    def __init__(self, replicas: Iterable[Replica], router: Router, now: float) -> None:
        self._replicas = [replica for replica in replicas if replica.ready and not replica.draining]
        self._router = router
        self._now = now
        self._placed: dict[str, int] = {}

    def place(self, request: RuntimeRequest) -> str | None:
        placed = self._placed
        views = [replica.view(placed.get(replica.id, 0)) for replica in self._replicas]
        chosen = self._router.choose(request, views, self._now)
        if chosen is not None:
            placed[chosen] = placed.get(chosen, 0) + request.num_slots
        return chosen

    def _num_free(self, replica: Replica) -> int:
        return replica.num_free - self._placed.get(replica.id, 0)

    @property
    def exhausted(self) -> bool:
        return all(self._num_free(replica) <= 0 for replica in self._replicas)

    @property
    def batch_limit(self) -> int | None:
        limits = [self._num_free(replica) for replica in self._replicas if replica.is_static]
        return max(limits) if limits else None
