"""`Router`: on which replica a request runs. Filter, then score, then pick.

Pure over snapshots but for the tie-break, whose randomness is injected. It keeps nothing between
calls: what is running where is counted by whoever makes the snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.routing.base import ReplicaView, RoutingPolicy


def eligible(request: RuntimeRequest, replicas: Sequence[ReplicaView]) -> list[ReplicaView]:
    """Those that can start the request now. Suspect ones (a cancellation that was not confirmed) only
    if there is no other; one that rests only if all do, be the others busy or not."""
    able, all_rest, any_rests, any_suspect = list[ReplicaView](), True, False, False
    model, num_slots = request.model, request.num_slots
    for replica in replicas:
        models = replica.models
        if not replica.ready or replica.draining or (models is not None and model not in models):
            continue
        resting = replica.resting
        all_rest = all_rest and resting
        if replica.accepts_batch and replica.num_free_slots >= num_slots:
            able.append(replica)
            any_rests = any_rests or resting
            any_suspect = any_suspect or replica.suspect
    if any_rests and not all_rest:
        able = [replica for replica in able if not replica.resting]
    if any_suspect:
        able = [replica for replica in able if not replica.suspect] or able
    return able


class Router:
    """Owned by a pool's dispatcher, called from the loop's thread only."""

    def __init__(self, policy: RoutingPolicy, random: Random) -> None:
        self._policy = policy
        self._random = random

    def choose(self, request: RuntimeRequest, replicas: Sequence[ReplicaView], now: float) -> str | None:
        """The id of the best replica with room for all of the request's slots; None if there is none.

        Equals are drawn among, so that replicas whose counters agree share the load.
        """
        if len(replicas) == 1:  # then there is nothing to weigh
            only = replicas[0]
            if not only.ready or only.draining or not only.accepts_batch:
                return None
            return (
                only.id if only.num_free_slots >= request.num_slots and only.serves(request.model) else None
            )
        able = eligible(request, replicas)
        if not able:
            return None
        if len(able) == 1:
            return able[0].id
        scores = self._policy.score(request, able, now)
        best = max(scores)
        ties = [replica.id for replica, score in zip(able, scores, strict=True) if score == best]
        return ties[0] if len(ties) == 1 else self._random.choice(ties)
