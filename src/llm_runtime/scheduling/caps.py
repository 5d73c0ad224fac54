"""Class caps: how much of the engines a class may hold, so that better classes keep their speed.

Priority decides who starts next; it cannot help those who decode beside a crowd. Two things are capped,
each for the classes that are told:

- **slots**: a share of those in force. A class may always hold one request while every better class is
  idle, whatever its share comes to.
- **prompts**: requests whose prompt the engine has not finished, per replica. Engines compute prompts in
  the order in which they come, so a crowd started at once stands in front of everybody who comes later;
  started one by one it costs its own throughput next to nothing.
- **prompt time**: while a better class is active, the share of time in which prompts of the class are
  computed. A prompt that took P seconds is followed by a pause of P * (1 / share - 1), in which everybody
  decodes at full speed. Of several replicas each has its own time, so the pause is divided by their number.
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
    """slot_share: of the slots in force. prompts: at once, per replica. prompt_time_share: of the time.
    None: no cap."""

    slot_share: float | None = None
    prompts: int | None = None
    prompt_time_share: float | None = None

    @property
    def on_prompts(self) -> bool:
        return self.prompts is not None or self.prompt_time_share is not None


@dataclass(slots=True)
class _Held:
    num_slots: int = 0
    at_prompt: dict[str, float] = field(default_factory=dict)  # with the instant it was started
    prompt_s: float = 0.0  # how long the last prompt took
    prompt_over_at: float = -math.inf
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
        if cap is not None and cap.on_prompts:
            held.at_prompt[request.id] = now
            if not request.stream:
                heapq.heappush(held.silent, (now + prefill_s, request.id))

    def first_token(self, request: RuntimeRequest, now: float) -> None:
        self._prompt_over(self._held[priority_class(request.priority)], request.id, now)

    def left(self, request: RuntimeRequest) -> None:
        held = self._held[priority_class(request.priority)]
        held.num_slots -= request.num_slots
        held.at_prompt.pop(request.id, None)

    def allows(
        self, request: RuntimeRequest, size: PoolSize, waiting: Mapping[PriorityClass, int], now: float
    ) -> bool:
        """Whether it may start now, as far as its class is concerned. waiting: requests by class."""
        cls = priority_class(request.priority)
        cap = self._caps.get(cls)
        if cap is None:
            return True
        return self._has_prompt(cls, cap, size, waiting, now) and self._has_slots(
            cls, cap, request, size, waiting
        )

    def share_of(self, request: RuntimeRequest) -> float:
        """Of the slots in force, that its class may hold."""
        cap = self._caps.get(priority_class(request.priority))
        return 1.0 if cap is None or cap.slot_share is None else cap.slot_share

    def wake_at(self, size: PoolSize, now: float) -> float | None:
        """When a cap opens without anybody telling; None if none does."""
        instants = []
        for cls, cap in self._caps.items():
            held = self._held[cls]
            if held.silent:
                instants.append(held.silent[0][0])
            pause_until = _pause_until(held, cap, size)
            if pause_until > now:
                instants.append(pause_until)
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

    def _has_prompt(
        self,
        cls: PriorityClass,
        cap: ClassCap,
        size: PoolSize,
        waiting: Mapping[PriorityClass, int],
        now: float,
    ) -> bool:
        held = self._held[cls]
        while held.silent and held.silent[0][0] <= now:
            at, request_id = heapq.heappop(held.silent)
            self._prompt_over(held, request_id, at)
        if cap.prompts is not None and len(held.at_prompt) >= cap.prompts * size.num_replicas:
            return False
        return _pause_until(held, cap, size) <= now or not self._better_active(cls, waiting)

    def _prompt_over(self, held: _Held, request_id: str, now: float) -> None:
        started_at = held.at_prompt.pop(request_id, None)
        if started_at is not None:
            held.prompt_s = now - started_at
            held.prompt_over_at = now


def _pause_until(held: _Held, cap: ClassCap, size: PoolSize) -> float:
    if cap.prompt_time_share is None:
        return -math.inf
    return held.prompt_over_at + held.prompt_s * (1 / cap.prompt_time_share - 1) / max(1, size.num_replicas)
