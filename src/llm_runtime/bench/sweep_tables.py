"""What a sweep over settings of a server says: gains by level, and which setting is best. Pure.

Repeats are taken together, as `sweep.pooled` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Setting = tuple[tuple[str, str], ...]
COMPARED = ("output_throughput", "mean_ttft_ms", "mean_e2el_ms", "p95_e2el_ms")
SHOWN = (*COMPARED, "queue_wait_ms", "failed")


@dataclass(frozen=True, slots=True)
class Row:
    """One setting at one level; figures: as in a summary, None where unknown."""

    setting: Setting
    level: float
    figures: Mapping[str, float | None]

    @property
    def name(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.setting) or "as it is"


def rows_of(body: Mapping[str, Any]) -> list[Row]:
    """Of `sweep.as_json`, in the order in which settings and levels were first met."""
    return [
        Row(
            tuple(each["server"].items()),
            float(each["level"]),
            {name: _one_figure(each[name]) for name in SHOWN},
        )
        for each in body["pooled"]
    ]


def gains(rows: list[Row]) -> Iterator[tuple[Row, Mapping[str, float | None]]]:
    """Each row of a setting after the first, with its figures divided by the first's at that level."""
    first = {row.level: row for row in rows if row.setting == rows[0].setting}
    for row in rows:
        if row.setting == rows[0].setting or row.level not in first:
            continue
        base = first[row.level].figures
        yield row, {name: _ratio(row.figures[name], base[name]) for name in COMPARED}


def best(rows: list[Row], max_p95_ms: float | None = None) -> list[Row]:
    """At the highest level, most tokens per second first; only those within the p95 of E2E, if given."""
    highest = max(row.level for row in rows)
    fit = [
        row
        for row in rows
        if row.level == highest and (max_p95_ms is None or _within(row.figures["p95_e2el_ms"], max_p95_ms))
    ]
    return sorted(fit, key=lambda row: -(row.figures["output_throughput"] or 0.0))


def _within(value: float | None, limit: float) -> bool:
    return value is not None and value <= limit


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def _one_figure(value: Any) -> float | None:
    """Of a figure of all requests itself, of one per run the mean."""
    figure = value["mean"] if isinstance(value, Mapping) else value
    return None if figure is None else float(figure)
