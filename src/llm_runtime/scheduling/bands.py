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
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.scheduling.flows import Flows, Shape
from llm_runtime.scheduling.order import Waiting

BandOf = Callable[[RuntimeRequest], int]
HeadRank = Callable[[int, Waiting], float]
"""(band, its head) -> number; the smallest is served next, ties go to the lower band."""


def strict(band: int, head: Waiting) -> float:
    """A lower band always goes first: a higher one may wait for ever."""
    return band


def ageing(interval_s: float) -> HeadRank:
    """Waiting `interval_s` is worth one band."""

    def rank(band: int, head: Waiting) -> float:
        return band * interval_s + head.queued_at

    return rank


class Bands:
    """All that waits in a pool. Owned by the pool's scheduler, which alone calls it.

    band_of: must return an index into `flows`.
    """

    def __init__(self, flows: Sequence[Flows], band_of: BandOf, rank: HeadRank) -> None:
        self._flows = tuple(flows)
        self._band_of = band_of
        self._rank = rank

    def push(self, entry: Waiting) -> None:
        entry.band = self._band_of(entry.request)
        self._flows[entry.band].push(entry)

    def drop(self, entry: Waiting) -> None:
        self._flows[entry.band].drop(entry)

    def take(self, entry: Waiting) -> None:
        self._flows[entry.band].take(entry)

    def settle(self, entry: Waiting, usage: Usage | None) -> None:
        self._flows[entry.band].settle(entry, usage)

    def head(self, refused: Collection[Shape]) -> Waiting | None:
        """The next request in order whose shape is not among the refused ones."""
        best: Waiting | None = None
        best_rank = 0.0
        for band, flows in enumerate(self._flows):
            entry = flows.head(refused)
            if entry is None:
                continue
            rank = self._rank(band, entry)
            if best is None or rank < best_rank:
                best, best_rank = entry, rank
        return best
