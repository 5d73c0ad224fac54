"""Why the first in the queue is still there, in one word. Says it; changes nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_runtime.core.request import PriorityClass
from llm_runtime.scheduling.base import (
    BATCH_FORMING,
    CLASS_CAP,
    NEEDS_MORE_SLOTS,
    NO_ENGINE_READY,
    NO_FREE_SLOT,
    SLOTS_KEPT,
    STARTING,
    Capacity,
    Head,
)
from llm_runtime.scheduling.caps import ClassCaps
from llm_runtime.scheduling.order import Waiting
from llm_runtime.scheduling.reserve import Reserve


@dataclass(frozen=True, slots=True)
class Obstacles:
    """What a scheduler may have put in the way. held_until: of the batch that is forming; waiting: requests
    by class; is_favoured: slots kept free are for the request."""

    held_until: float | None = None
    caps: ClassCaps | None = None
    waiting: Mapping[PriorityClass, int] = field(default_factory=lambda: dict.fromkeys(PriorityClass, 0))
    reserve: Reserve | None = None
    is_favoured: bool = False


def why_it_waits(entry: Waiting, capacity: Capacity, obstacles: Obstacles, now: float) -> Head:
    """In the order in which `PoolScheduler.decide` meets the obstacles."""
    reason, until = STARTING, None
    request, size = entry.request, capacity.size
    caps, reserve = obstacles.caps, obstacles.reserve
    if not size.num_replicas:
        reason = NO_ENGINE_READY
    elif capacity.exhausted:
        reason = NO_FREE_SLOT
    elif obstacles.held_until is not None and capacity.batch_limit is not None:
        reason, until = BATCH_FORMING, obstacles.held_until
    elif caps is not None and not caps.allows(request, size, obstacles.waiting, now):
        reason, until = CLASS_CAP, caps.wake_at(size, now)
    elif reserve is not None and not reserve.allows(
        request, is_favoured=obstacles.is_favoured, num_slots=size.num_slots
    ):
        reason = SLOTS_KEPT
    elif capacity.place(request) is None:
        reason = NEEDS_MORE_SLOTS
    return Head(request, entry.queued_at, reason, until)
