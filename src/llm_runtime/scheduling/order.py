"""Order inside a flow: which of several requests with equal rights is first.

An order is a static key: it must not change while a request waits, because heaps rest on that. What
changes with time (ageing) is decided between the heads of bands, in `bands.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.scheduling.history import History

Rank = tuple[float, ...]
"""Smaller runs earlier. Unique among those that wait: its last member is a sequence number."""

TRUSTED: Final = 0.5
"""Correlation from which on predictions may keep slots from anybody."""
MEAN_GAIN: Final = 0.01
_MIN_COMPACTION: Final = 64
_MAX_SAMPLE: Final = 256


class Waiting:
    """A request in the queue. Owned by the pool's scheduler, shared by the structures that index it.

    seq: unique; breaks ties among requests queued at the same instant.
    queue_until: when its waiting limit ends it; hopeless_at: when it can no longer meet its deadline, if
    that ends it too; None if never.
    predicted_s: what its order took it to need on an engine; charged: what its flow has charged for it;
    work: what it is expected to cost the pool, in generated tokens (see `History.work`).
    is_short: cleared by an order that finds it long.
    band: set by the bands, rank: set by the flow it is pushed to.
    num_preempted: how often it was taken off an engine.
    passed_since: when a later request was first placed while this one did not fit.
    gone: it has left the queue; heaps drop such entries when they meet them.
    """

    __slots__ = (
        "band", "charged", "gone", "hopeless_at", "is_short", "num_preempted", "passed_since", "predicted_s",
        "queue_until", "queued_at", "rank", "request", "seq", "work",
    )  # fmt: skip

    def __init__(
        self,
        request: RuntimeRequest,
        queued_at: float,
        seq: int,
        queue_until: float | None = None,
        work: float = 0.0,
    ) -> None:
        self.request: Final = request
        self.queued_at: Final = queued_at
        self.seq = seq
        self.queue_until = queue_until
        self.work = work
        self.hopeless_at: float | None = None
        self.predicted_s: float | None = None
        self.charged = 0.0
        self.is_short = True
        self.band = 0
        self.rank: Rank = ()
        self.num_preempted = 0
        self.passed_since: float | None = None
        self.gone = False

    @property
    def leaves_at(self) -> float | None:
        """When it leaves the queue unserved, the earlier of both."""
        if self.queue_until is None or self.hopeless_at is None:
            return self.hopeless_at if self.queue_until is None else self.queue_until
        return min(self.queue_until, self.hopeless_at)


class Running:
    """A request on an engine. Owned by the pool's scheduler.

    prompt_until: when its prompt is done as predicted; of a plain reply no first token tells.
    has_token: its first token has come. is_leaving: it was told to make room.
    """

    __slots__ = ("dispatched_at", "entry", "has_token", "is_leaving", "prompt_until", "replica")

    def __init__(self, entry: Waiting, replica: str, dispatched_at: float, prompt_until: float) -> None:
        self.entry: Final = entry
        self.replica: Final = replica
        self.dispatched_at: Final = dispatched_at
        self.prompt_until: Final = prompt_until
        self.has_token = False
        self.is_leaving = False

    def at_work(self, now: float) -> bool:
        """Past its prompt, as far as anybody knows."""
        if self.entry.request.stream:
            return self.has_token
        return self.has_token or now >= self.prompt_until


Order = Callable[[Waiting], float]
"""Key of a request as if it were queued, smaller first; ties fall to the one queued earlier. Changes nothing
but the entry, since it is also asked for requests that only want to know how long they would wait."""


def fifo(entry: Waiting) -> float:
    """First come, first served."""
    return entry.queued_at


def deadline(entry: Waiting) -> float:
    """Earliest deadline first; those without one come last, in their order."""
    return deadline_at(entry.request)


def deadline_at(request: RuntimeRequest) -> float:
    """The first instant at which one of the request's limits ends it; infinite without limits."""
    limits = request.limits
    spans = [span for span in (limits.request_s, limits.total_s, limits.first_byte_s) if span is not None]
    return request.arrived_at + min(spans) if spans else float("inf")


class Shortest:
    """Shortest predicted service first, with ageing: a request of predicted size S queued at t has the key

        t + patience * trust * S

    so it is overtaken only by those that come within `patience * trust * (S - theirs)` seconds of it: a
    short one hardly, a long one in proportion to its own length. With predictions that tell nothing, or
    the opposite of the truth, trust is 0 and this is FIFO. Keys are made when requests come; trust that
    changes later changes nothing for those who wait.

    It also tells who is long: predicted to need more than the mean, by predictions that can be trusted.
    """

    def __init__(self, history: History, patience: float) -> None:
        self._history = history
        self._patience = patience
        self._num_seen = 0
        self._mean_s = 0.0

    def __call__(self, entry: Waiting) -> float:
        trust = self._history.trust.value
        entry.predicted_s = size_s = self._history.seconds(entry.request)
        entry.is_short = trust < TRUSTED or size_s <= self._mean_s
        return entry.queued_at + self._patience * trust * size_s

    def came(self, entry: Waiting) -> None:
        """It has its key and is queued."""
        size_s = entry.predicted_s or 0.0
        self._num_seen += 1
        self._mean_s += max(MEAN_GAIN, 1 / self._num_seen) * (size_s - self._mean_s)


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

    def work_before(self, rank: Rank) -> float:
        """Of the entries with a smaller rank. Of a long heap a sample tells, so that this stays cheap."""
        stride = 1 + len(self._items) // _MAX_SAMPLE
        sample = [item for item in self._items[::stride] if not item[2].gone]
        if not sample:
            return 0.0
        before = sum(entry.work for key, _, entry in sample if key < rank)
        return before * self._num_waiting / len(sample)

    def head(self) -> Waiting | None:
        """The first entry still waiting; it stays in the heap."""
        items = self._items
        while items:
            entry = items[0][2]
            if not entry.gone:
                return entry
            heapq.heappop(items)
        return None
