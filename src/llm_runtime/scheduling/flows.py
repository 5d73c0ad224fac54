"""Flows: how the requests of one band share it.

A band with one flow serves them in the flow's order. A fair band has a flow per tenant (`fair.py`). The
scheduler above sees no difference, because it only ever asks for the head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from llm_runtime.core.outcome import Usage
from llm_runtime.scheduling.order import LazyHeap, Order, Waiting, fifo

Shape = int
"""What decides whether a request fits: two requests of one shape get the same answer from the same
capacity. Today the number of slots, below 0 for long requests, which may not take every slot; whatever
else the router filters by has to become part of it."""


def shape_of(entry: Waiting) -> Shape:
    num_slots = entry.request.num_slots
    return num_slots if entry.is_short else -num_slots


class Flows(Protocol):
    """The waiting requests of one band. Owned by the scheduler, which alone calls it."""

    def push(self, entry: Waiting) -> None:
        """Takes it in. Sets `entry.rank`."""
        ...

    def drop(self, entry: Waiting) -> None:
        """It left unserved; `entry.gone` is already set."""
        ...

    def take(self, entry: Waiting) -> None:
        """It is dispatched; `entry.gone` is already set."""
        ...

    def settle(self, entry: Waiting, usage: Usage | None) -> None:
        """What was taken has left the engine. None: unknown, or nothing was computed."""
        ...

    def is_favoured(self, entry: Waiting) -> bool:
        """Whether it may have the slots that are kept free."""
        ...

    def head(self, refused: Collection[Shape]) -> Waiting | None:
        """Who is next, leaving out the shapes that were already found not to fit."""
        ...

    @property
    def work(self) -> float:
        """Of all that waits in it."""
        ...

    @property
    def is_trackless(self) -> bool:
        """Whether a request that is pushed and taken at once while nobody waits leaves no trace."""
        ...

    def ahead(self, entry: Waiting) -> float:
        """Work that would be served before `entry`, if it were pushed now. Changes nothing."""
        ...


class SingleFlow:
    """All requests of the band in one order. Implements `Flows`.

    Requests are kept by shape: when the first of a shape does not fit, none behind it does, so a
    decision looks at one request per shape however many wait.
    """

    def __init__(self, order: Order, came: Callable[[Waiting], None] | None = None) -> None:
        """came: told of each request that was pushed."""
        self._order = order
        self._came = came
        self._by_shape: dict[Shape, LazyHeap] = {}
        self.work = 0.0

    def push(self, entry: Waiting) -> None:
        entry.rank = (self._order(entry), entry.queued_at, entry.seq)
        shape = shape_of(entry)
        heap = self._by_shape.get(shape)
        if heap is None:
            heap = self._by_shape[shape] = LazyHeap()
        heap.push(entry.rank, entry)
        self.work += entry.work
        if self._came is not None:
            self._came(entry)

    def drop(self, entry: Waiting) -> None:
        shape = shape_of(entry)
        heap = self._by_shape[shape]
        heap.note_gone()
        if heap:
            self.work -= entry.work
        else:
            del self._by_shape[shape]
            self.work = self.work - entry.work if self._by_shape else 0.0

    def take(self, entry: Waiting) -> None:
        self.drop(entry)

    @property
    def is_trackless(self) -> bool:
        return self._came is None

    def settle(self, entry: Waiting, usage: Usage | None) -> None:
        """One flow shares with nobody, so there is nothing to account for."""

    def is_favoured(self, entry: Waiting) -> bool:
        return entry.is_short

    def ahead(self, entry: Waiting) -> float:
        if self._order is fifo:
            return self.work
        rank = (self._order(entry), entry.queued_at, entry.seq)
        return sum(heap.work_before(rank) for heap in self._by_shape.values())

    def head(self, refused: Collection[Shape]) -> Waiting | None:
        first: Waiting | None = None
        for shape, heap in self._by_shape.items():
            if shape in refused:
                continue
            entry = heap.head()
            if entry is not None and (first is None or entry.rank < first.rank):
                first = entry
        return first
