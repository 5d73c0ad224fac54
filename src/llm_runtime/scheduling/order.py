"""Order inside a flow: which of several requests with equal rights is first.

An order is a static key: it must not change while a request waits, because heaps rest on that. What
changes with time (ageing) is decided between the heads of bands, in `bands.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from llm_runtime.core.request import RuntimeRequest

Rank = tuple[float, ...]
"""Smaller runs earlier. Unique among those that wait: its last member is a sequence number."""

Order = Callable[[RuntimeRequest, float], float]
"""(request, queued_at) -> key, smaller first; ties fall to the one queued earlier."""

_MIN_COMPACTION = 64


def fifo(request: RuntimeRequest, queued_at: float) -> float:
    """First come, first served."""
    return queued_at


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the queue. Owned by the pool's scheduler, shared by the structures that index it.

    seq: unique; breaks ties among requests queued at the same instant.
    deadline_at: when its waiting ends unserved; None if never.
    band: set by the bands, rank: set by the flow it is pushed to.
    passed_since: when a later request was first placed while this one did not fit.
    gone: it has left the queue; heaps drop such entries when they meet them.
    """

    request: RuntimeRequest
    queued_at: float
    seq: int
    deadline_at: float | None = None
    band: int = 0
    rank: Rank = ()
    passed_since: float | None = None
    gone: bool = False


class LazyHeap:
    """Waiting requests by rank. Push and pop cost O(log n), removal O(1) amortised: a removed entry is
    only marked (`Waiting.gone`) and swept when it surfaces or when marked ones outnumber the rest.
    """

    __slots__ = ("_items", "_num_pushed", "_num_waiting")

    def __init__(self) -> None:
        # The number between rank and entry keeps entries from being compared: one that was requeued
        # meets its own former self, still in the heap and of the same rank.
        self._items: list[tuple[Rank, int, Waiting]] = []
        self._num_pushed = 0
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, rank: Rank, entry: Waiting) -> None:
        heapq.heappush(self._items, (rank, self._num_pushed, entry))
        self._num_pushed += 1
        self._num_waiting += 1

    def note_gone(self) -> None:
        """One of the entries has just been marked as gone."""
        self._num_waiting -= 1
        if len(self._items) > 2 * self._num_waiting + _MIN_COMPACTION:
            self._items = [item for item in self._items if not item[2].gone]
            heapq.heapify(self._items)

    def head(self) -> Waiting | None:
        """The first entry still waiting; it stays in the heap."""
        items = self._items
        while items:
            entry = items[0][2]
            if not entry.gone:
                return entry
            heapq.heappop(items)
        return None
