"""What `PoolScheduler` counts: all that waits, and what one decision has done so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_runtime.core.request import PriorityClass, priority_class
from llm_runtime.scheduling.base import Placement
from llm_runtime.scheduling.flows import Shape
from llm_runtime.scheduling.order import Waiting


@dataclass(slots=True)
class Totals:
    """Of the requests that wait."""

    num_slots: int = 0
    num_tokens: int = 0
    by_class: dict[PriorityClass, int] = field(default_factory=lambda: dict.fromkeys(PriorityClass, 0))
    work_by_class: dict[PriorityClass, float] = field(
        default_factory=lambda: dict.fromkeys(PriorityClass, 0.0)
    )

    def count(self, entry: Waiting, sign: int) -> None:
        request = entry.request
        cls = priority_class(request.priority)
        self.num_slots += sign * request.num_slots
        self.num_tokens += sign * (request.num_prompt_tokens + request.max_tokens * request.num_slots)
        self.by_class[cls] += sign
        # Sums of floats drift; an empty class starts anew.
        self.work_by_class[cls] = self.work_by_class[cls] + sign * entry.work if self.by_class[cls] else 0.0


@dataclass(slots=True)
class Pass:
    """One decision under way."""

    placed: list[Placement] = field(default_factory=list)
    num_placed_slots: int = 0
    refused: set[Shape] = field(default_factory=set)
    closed: set[PriorityClass] = field(default_factory=set)
    passed_over: list[Waiting] = field(default_factory=list)
    batch_closed: bool = False
    """Our own limit ended the batch. Whether another engine is idle shows only in the next decision."""
