"""Class caps: how much of the engines a class may hold, so that better classes keep their speed.

Priority decides who starts next; it cannot help those who decode beside a crowd. Two things are capped,
each for the classes that are told:

- **slots**: a share of those in force. A class may always hold one request while every better class is
  idle, whatever its share comes to.
- **prompts**: requests whose prompt the engine has not finished, per replica. Engines compute prompts in
  the order in which they come, so a crowd started at once stands in front of everybody who comes later;
  started one by one it costs its own throughput next to nothing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_runtime.core.request import PriorityClass, RuntimeRequest, priority_class
from llm_runtime.scheduling.base import PoolSize

BEST_FIRST = tuple(PriorityClass)
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ClassCap:
    """slot_share: of the slots in force, None: no cap. prompts: per replica, None: no cap."""

    slot_share: float | None = None
    prompts: int | None = None


@dataclass(slots=True)
class _Held:
    num_slots: int = 0
    at_prompt: set[str] = field(default_factory=set)
    silent: list[tuple[float, str]] = field(default_factory=list)  # heap: when plain ones' prompts end


class ClassCaps:
    """Owned by one pool's scheduler, which tells it of every start and end."""

    def __init__(self, caps: Mapping[PriorityClass, ClassCap]) -> None:
        self._caps = dict(caps)
        self._held = {cls: _Held() for cls in PriorityClass}

    def started(self, request: RuntimeRequest, now: float, prefill_s: float) -> None:
        """prefill_s: predicted. Of a stream the first token tells when its prompt is done; of a plain
        reply nobody does, so the prediction has to."""
        cls = priority_class(request.priority)
        held, cap = self._held[cls], self._caps.get(cls)
        held.num_slots += request.num_slots
        if cap is not None and cap.prompts is not None:
            held.at_prompt.add(request.id)
            if not request.stream:
                heapq.heappush(held.silent, (now + prefill_s, request.id))

    def first_token(self, request: RuntimeRequest) -> None:
        self._held[priority_class(request.priority)].at_prompt.discard(request.id)

    def left(self, request: RuntimeRequest) -> None:
        held = self._held[priority_class(request.priority)]
        held.num_slots -= request.num_slots
        held.at_prompt.discard(request.id)

    def allows(
        self, request: RuntimeRequest, size: PoolSize, waiting: Mapping[PriorityClass, int], now: float
    ) -> bool:
        """Whether it may start now, as far as its class is concerned. waiting: requests by class."""
        cls = priority_class(request.priority)
        cap = self._caps.get(cls)
        if cap is None:
            return True
        return self._has_prompt(cls, cap, size, now) and self._has_slots(cls, cap, request, size, waiting)

    def wake_at(self, now: float) -> float | None:
        """When a cap opens without anybody telling; None if none does."""
        instants = [held.silent[0][0] for held in self._held.values() if held.silent]
        return max(min(instants), now) if instants else None

    def _has_slots(
        self,
        cls: PriorityClass,
        cap: ClassCap,
        request: RuntimeRequest,
        size: PoolSize,
        waiting: Mapping[PriorityClass, int],
    ) -> bool:
        if cap.slot_share is None:
            return True
        held = self._held[cls].num_slots
        limit = math.floor(cap.slot_share * size.num_slots + ROUNDING)
        if held + request.num_slots <= limit:
            return True
        if held:
            return False
        # One request wider than its class's share has to run at some time as well.
        return limit > 0 or not self._better_active(cls, waiting)

    def _better_active(self, cls: PriorityClass, waiting: Mapping[PriorityClass, int]) -> bool:
        better = BEST_FIRST[: BEST_FIRST.index(cls)]
        return any(waiting[each] or self._held[each].num_slots for each in better)

    def _has_prompt(self, cls: PriorityClass, cap: ClassCap, size: PoolSize, now: float) -> bool:
        if cap.prompts is None:
            return True
        held = self._held[cls]
        while held.silent and held.silent[0][0] <= now:
            held.at_prompt.discard(heapq.heappop(held.silent)[1])
        return len(held.at_prompt) < cap.prompts * size.num_replicas
