"""All that waits in a pool, whatever the order it is served in: by name, by age, by the instant at which it
leaves unserved, and what would be shed first; and what it adds up to.
"""

from __future__ import annotations

from llm_runtime.core.request import PriorityClass, RuntimeRequest, priority_class
from llm_runtime.scheduling.order import LazyHeap, Waiting
from llm_runtime.scheduling.totals import Totals

SHEDDABLE = PriorityClass.BATCH


def is_sheddable(request: RuntimeRequest) -> bool:
    return priority_class(request.priority) is SHEDDABLE


class WaitingList:
    """Owned by the pool's scheduler, which alone calls it. Each way in or out costs O(log n)."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._entries: dict[str, Waiting] = {}
        self._by_age = LazyHeap()
        self._by_deadline = LazyHeap()
        self._sheddable = LazyHeap()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def get(self, request_id: str) -> Waiting | None:
        return self._entries.get(request_id)

    def push(self, entry: Waiting) -> None:
        request = entry.request
        self._entries[request.id] = entry
        if is_sheddable(request):
            self._sheddable.push((-request.priority, -entry.queued_at, -entry.seq), entry)
        self._by_age.push((entry.queued_at, entry.seq), entry)
        leaves_at = entry.leaves_at
        if leaves_at is not None:
            self._by_deadline.push((leaves_at, entry.seq), entry)
        self.totals.count(entry, +1)

    def forget(self, entry: Waiting) -> None:
        """It leaves, in whatever way; marks it as gone."""
        entry.gone = True
        del self._entries[entry.request.id]
        self._by_age.note_gone()
        if entry.leaves_at is not None:
            self._by_deadline.note_gone()
        if is_sheddable(entry.request):
            self._sheddable.note_gone()
        self.totals.count(entry, -1)

    def overdue(self, now: float) -> Waiting | None:
        """Who has to leave unserved by now, the earliest first."""
        entry = self._by_deadline.head()
        if entry is None or entry.leaves_at is None or entry.leaves_at > now:
            return None
        return entry

    @property
    def next_deadline_at(self) -> float | None:
        """When the next one has to leave."""
        entry = self._by_deadline.head()
        return None if entry is None else entry.leaves_at

    @property
    def first_to_shed(self) -> Waiting | None:
        """Of the lowest priority the latest."""
        return self._sheddable.head()

    @property
    def oldest(self) -> Waiting | None:
        return self._by_age.head()
