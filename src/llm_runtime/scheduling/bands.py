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
from llm_runtime.scheduling.caps import BEST_FIRST
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

    @property
    def is_single(self) -> bool:
        """Whether classes are not told apart."""
        return len(self._flows) == 1

    @property
    def is_trackless(self) -> bool:
        """See `Flows`."""
        return all(flows.is_trackless for flows in self._flows)

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

    def ahead(self, entry: Waiting) -> float:
        """Work that would be served before `entry`, if it were pushed now and nobody came after it. Of a
        band whose older part alone goes first, as much as is older, its ages taken as spread evenly."""
        own = self._band_of(entry.request)
        rank = self._rank(self._levels[own], entry)
        return self._flows[own].ahead(entry) + sum(
            flows.work * self._share_before(band, rank, entry)
            for band, flows in enumerate(self._flows)
            if band != own and flows.work
        )

    def overtakes(self, cls: PriorityClass, request: RuntimeRequest) -> bool:
        """Whether who comes of that class goes before the request for as long as this waits."""
        if self._rank is not strict or self._classes is None:
            return False
        own = self._classes[self._band_of(request)]
        return BEST_FIRST.index(cls) < BEST_FIRST.index(own)

    def _share_before(self, band: int, rank: float, entry: Waiting) -> float:
        level, head = self._levels[band], self._flows[band].head(())
        if head is None:
            return 0.0
        oldest, newest = self._rank(level, head), self._rank(level, entry)
        if newest <= rank:
            return 1.0
        return min(max((rank - oldest) / (newest - oldest), 0.0), 1.0) if newest > oldest else 0.0

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
