"""Bands: classes of requests, one before the other. Inside a band, `flows.py` decides.

Ageing happens here, between the heads of bands. A request of level p queued at t competes with

    p * interval + t

which is static: no stored key depends on the present. Seen at instant `now` that is the same order as
"effective level = p - (now - t) / interval". A request can be overtaken only by one that is better by
dp levels and arrives less than dp * interval seconds after it; that bounds its wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import PriorityClass, RuntimeRequest, priority_class
from llm_runtime.scheduling.flows import Flows, Shape
from llm_runtime.scheduling.order import Waiting

BandOf = Callable[[RuntimeRequest], int]
HeadRank = Callable[[int, Waiting], float]
"""(level of a band, its head) -> number; the smallest is served next, ties go to the lower level."""


def strict(level: int, head: Waiting) -> float:
    """A lower level always goes first: a higher one may wait for ever."""
    return level


def ageing(interval_s: float) -> HeadRank:
    """Waiting `interval_s` is worth one level."""

    def rank(level: int, head: Waiting) -> float:
        return level * interval_s + head.queued_at

    return rank


class Bands:
    """All that waits in a pool. Owned by the pool's scheduler, which alone calls it.

    band_of: must return an index into `flows`. levels: of each band, by which `rank` measures the
    distance between bands and which tell its class; without them the band's number, and no classes.
    """

    def __init__(
        self, flows: Sequence[Flows], band_of: BandOf, rank: HeadRank, levels: Sequence[int] | None = None
    ) -> None:
        self._flows = tuple(flows)
        self._band_of = band_of
        self._rank = rank
        self._levels = tuple(range(len(self._flows))) if levels is None else tuple(levels)
        self._classes = None if levels is None else tuple(priority_class(level) for level in levels)

    def push(self, entry: Waiting) -> None:
        entry.band = self._band_of(entry.request)
        self._flows[entry.band].push(entry)

    def drop(self, entry: Waiting) -> None:
        self._flows[entry.band].drop(entry)

    def take(self, entry: Waiting) -> None:
        self._flows[entry.band].take(entry)

    def settle(self, entry: Waiting, usage: Usage | None) -> None:
        self._flows[entry.band].settle(entry, usage)

    def is_favoured(self, entry: Waiting) -> bool:
        return self._flows[entry.band].is_favoured(entry)

    def before(self, one: Waiting, other: Waiting) -> bool:
        """Whether `one` would be served before `other` if both waited in bands of their own."""
        return self._rank(self._levels[one.band], one) < self._rank(self._levels[other.band], other)

    def head(self, refused: Collection[Shape], closed: Collection[PriorityClass] = ()) -> Waiting | None:
        """The next request in order whose shape is not among the refused ones, nor its class among the
        closed ones."""
        best: Waiting | None = None
        best_rank = 0.0
        for band, flows in enumerate(self._flows):
            if closed and self._classes is not None and self._classes[band] in closed:
                continue
            entry = flows.head(refused)
            if entry is None:
                continue
            rank = self._rank(self._levels[band], entry)
            if best is None or rank < best_rank:
                best, best_rank = entry, rank
        return best
