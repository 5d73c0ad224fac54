"""Ray Serve's request router, made to obey: a request goes to the replica it names, or nowhere.

Which replica runs what is decided in our queue, by our router, over our own counts. Ray's part is to
say who is there and to carry the request. This class is put into the engine deployment's
`request_router_config`, and Ray makes an instance of it in each process that has a handle.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from llm_runtime.engines.ray import board
from llm_runtime.engines.ray.base import Member, Membership

REPLICA = "replica"
"""The argument of a call that names its replica. It goes there with it."""


class SteeredRouter(RequestRouter):  # type: ignore[misc]
    """Made by Ray, called on the loop of its router. Ray sends this module to its processes by value, so
    nothing that is shared within one may be defined here."""

    def initialize_state(self, **kwargs: Any) -> None:
        self._gone: set[str] = set()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return []
        wanted = pending_request.kwargs.get(REPLICA)
        found = [one for one in candidate_replicas if one.replica_id.unique_id == wanted]
        if found:
            return [found]
        # Ray would wait for it to come back, which it never does. Whoever awaits the call sees it
        # cancelled; Ray sees that it is over as soon as it is given candidates, whichever they are.
        pending_request.future.cancel()
        return [candidate_replicas]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._publish()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._gone.add(replica_id.unique_id)
        self._publish()

    def _publish(self) -> None:
        members = tuple(
            Member(one.replica_id.unique_id, one.node_id or "", dict(one.replica_metadata))
            for one in self.curr_replicas.values()
        )
        board.BOARD.publish(self._deployment_id.name, Membership(members, frozenset(self._gone)))
