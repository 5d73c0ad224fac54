"""Histograms as plain integers, and bucket edges of the size that LLM serving needs.

Edges are in seconds, tokens or requests, from below a millisecond to beyond the longest time limit,
each quantity with its own: a finite bucket holds what takes 0.5 ms and what takes a quarter hour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

QUEUE_WAIT_EDGES_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0, 900.0, 1800.0,
)  # fmt: skip
TTFT_EDGES_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0,
    3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 1800.0,
)  # fmt: skip
TPOT_EDGES_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 1.0, 2.5, 10.0, 60.0, 300.0, 900.0,
)  # fmt: skip
E2E_EDGES_S = (
    0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0, 90.0, 120.0, 200.0, 300.0, 600.0, 900.0, 1800.0, 3600.0,
)  # fmt: skip
TOKEN_EDGES = (
    1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576,
)  # fmt: skip
BATCH_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


_bucket_of: Final = bisect_left
_LARGEST: Final = 1.7976931348623157e308


class Histogram:
    """Counts per bucket, not cumulative; the last one is above every edge. Upper edges belong to it.

    Owned by one collector, used on the loop's thread.
    """

    __slots__ = ("_above", "_bucket", "_up_to", "counts", "edges", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0
        # The bucket that was hit last, because the next value mostly falls there too: at first none.
        self._bucket = 0
        self._above = 0.0
        self._up_to = 0.0

    def observe(self, value: float | None) -> None:
        """None, NaN and what is negative or infinite are no measurements and are left out."""
        if value is None:
            return
        number: float = value
        if not self._above < number <= self._up_to:
            if not 0.0 <= number <= _LARGEST:
                return
            edges = self.edges
            self._bucket = bucket = _bucket_of(edges, number)
            self._above = edges[bucket - 1] if bucket else 0.0
            self._up_to = edges[bucket] if bucket < len(edges) else _LARGEST
        self.counts[self._bucket] += 1
        self.sum += number

    def merge(self, counts: Sequence[int], total: float) -> None:
        """Adds what somebody counted over the same edges; `total` is the sum of the values.

        Raises ValueError if the number of buckets differs.
        """
        if len(counts) != len(self.counts):
            raise ValueError("not counted over the same edges")
        for bucket, count in enumerate(counts):
            if count:
                self.counts[bucket] += count
        self.sum += total

    @property
    def count(self) -> int:
        return sum(self.counts)
