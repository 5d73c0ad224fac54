"""Where more of something stops to pay."""

from __future__ import annotations

from collections.abc import Mapping

ENOUGH = 0.9


def knee(rates: Mapping[int, float], enough: float = ENOUGH) -> int | None:
    """The smallest value that gives at least the share `enough` of the best rate that any value gives.

    rates: by value, of two values or more. None when only the greatest value does: then the knee, if there
    is one, lies beyond what was tried. Raises ValueError for fewer values.
    """
    if len(rates) < 2:
        raise ValueError("a knee needs two values or more")
    wanted = enough * max(rates.values())
    first = min(value for value, rate in rates.items() if rate >= wanted)
    return None if first == max(rates) else first
