"""Preemption: who gives up its slots when somebody of a better class waits and none is free.

Before its first token a request goes back to its old place in the queue: nothing was sent, so only the
work on its prompt is lost. Where that is configured, running requests of the batch class give way too;
their clients have part of an answer and are told that it ends there.

A waiting request asks once, when it comes, and for no more slots than it needs. So there are never more
preemptions than better requests that had to wait; and who was preempted `MAX_PREEMPTIONS` times stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from llm_runtime.core.request import PriorityClass, priority_class
from llm_runtime.scheduling.order import Running, Waiting

MAX_PREEMPTIONS = 2
BEST_FIRST = tuple(PriorityClass)

Before = Callable[[Waiting, Waiting], bool]
"""Whether the first would be served before the second, if both waited."""


@dataclass(slots=True)
class Victims:
    """back: before their first token, to the queue. shed: running, and ended where bytes were sent."""

    back: list[str] = field(default_factory=list)
    shed: list[str] = field(default_factory=list)


class Preemption:
    """Owned by one pool's scheduler, which tells it of everybody who comes.

    running_too: whether running requests of the batch class may be ended.
    """

    def __init__(self, *, running_too: bool) -> None:
        self._running_too = running_too
        self._newcomers: list[Waiting] = []

    def came(self, entry: Waiting) -> None:
        if _standing(entry) < len(BEST_FIRST) - 1:
            self._newcomers.append(entry)

    def victims(self, running: Mapping[str, Running], before: Before, now: float) -> Victims:
        """For those who have come since and could not be placed. What is named counts as asked."""
        victims = Victims()
        newcomers, self._newcomers = self._newcomers, []
        for entry in newcomers:
            if entry.gone:
                continue
            for each in self._chosen(entry, running.values(), before, now):
                each.is_leaving = True
                each.entry.num_preempted += 1
                where = victims.shed if each.at_work(now) else victims.back
                where.append(each.entry.request.id)
        return victims

    def _chosen(
        self, entry: Waiting, running: Iterable[Running], before: Before, now: float
    ) -> list[Running]:
        """The least loss on one replica that makes room for the entry; nobody where none has enough."""
        candidates: dict[str, list[Running]] = {}
        for each in running:
            if self._gives_way(each, entry, before, now):
                candidates.setdefault(each.replica, []).append(each)
        found = [
            chosen
            for those in candidates.values()
            if (chosen := _enough(sorted(those, key=lambda each: _loss(each, now)), entry))
        ]
        return min(found, key=lambda chosen: [_loss(each, now) for each in reversed(chosen)], default=[])

    def _gives_way(self, each: Running, entry: Waiting, before: Before, now: float) -> bool:
        standing = _standing(each.entry)
        if each.is_leaving or standing <= _standing(entry) or each.entry.num_preempted >= MAX_PREEMPTIONS:
            return False
        if each.at_work(now) and not (self._running_too and standing == len(BEST_FIRST) - 1):
            return False
        return before(entry, each.entry)


def _standing(entry: Waiting) -> int:
    return BEST_FIRST.index(priority_class(entry.request.priority))


def _loss(each: Running, now: float) -> tuple[bool, float]:
    """Those at their prompt before those at work; whoever was started last has lost least."""
    return each.at_work(now), -each.dispatched_at


def _enough(those: list[Running], entry: Waiting) -> list[Running]:
    num_slots = 0
    for number, each in enumerate(those, start=1):
        num_slots += each.entry.request.num_slots
        if num_slots >= entry.request.num_slots:
            return those[:number]
    return []
