"""Prometheus exposition: text 0.0.4 and OpenMetrics 1.0.0 of the families in `families.py`.

prometheus_client gives the content types and the process's own metrics. The lines of
our families are written here, because its encoder takes 9 to 16 us a line (measured): 2,000 lines
would hold the event loop, and every stream on it, for 20 ms. The tests read both with its parsers and
compare what its encoder makes of the same families.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from llm_runtime.telemetry.families import Family, Sources, collect
from llm_runtime.telemetry.histogram import Histogram

# Series between two turns of the loop: about 30 lines each for a histogram, 0.3 ms in all.
SERIES_PER_TURN = 24

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class Format(Enum):
    """The value is the content type."""

    TEXT = CONTENT_TYPE_PLAIN_0_0_4
    OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST


def negotiate(accept: str | None) -> Format | None:
    """What an Accept header asks for; None if it names neither format (`*/*` does not).

    The higher q wins, OpenMetrics where they are equal, as Prometheus itself would like it.
    """
    best: tuple[float, bool] = (0.0, False)
    for entry in (accept or "").lower().split(","):
        media, *parameters = (part.strip() for part in entry.split(";"))
        options = dict(part.split("=", 1) for part in parameters if "=" in part)
        version = options.get("version", "").strip('"')
        if media == "application/openmetrics-text" and version in ("", "0.0.1", "1.0.0"):
            best = max(best, (_quality(options), True))
        elif media == "text/plain":
            best = max(best, (_quality(options), False))
    if best[0] <= 0:
        return None
    return Format.OPENMETRICS if best[1] else Format.TEXT


def _quality(options: dict[str, str]) -> float:
    try:
        return min(max(float(options.get("q", "1")), 0.0), 1.0)
    except ValueError:
        return 0.0


class PrometheusExporter:
    """Owned by the application; used on the loop's thread, where the numbers are counted."""

    def __init__(self, sources: Sources, *, process_metrics: bool = True) -> None:
        self._sources = sources
        self._registry = CollectorRegistry()
        if process_metrics:
            ProcessCollector(registry=self._registry)

    def render(self, accept: str | None = None) -> tuple[bytes, str]:
        """The whole exposition and its content type; text 0.0.4 where `accept` asks for neither."""
        wanted = negotiate(accept) or Format.TEXT
        return "".join(self._pieces(wanted)).encode("utf-8", "replace"), wanted.value

    async def render_in_turns(self, accept: str | None = None) -> tuple[bytes, str]:
        """The same, but the loop gets its turn between pieces. Each series is of one moment."""
        wanted = negotiate(accept) or Format.TEXT
        pieces = []
        for piece in self._pieces(wanted):
            pieces.append(piece)
            await asyncio.sleep(0)
        return "".join(pieces).encode("utf-8", "replace"), wanted.value

    def _pieces(self, wanted: Format) -> Iterator[str]:
        plain = wanted is Format.TEXT
        for family in collect(self._sources):
            yield from _family(family, plain)
        encode = generate_latest if plain else openmetrics.generate_latest
        yield encode(self._registry).decode("utf-8")


def _family(family: Family, plain: bool) -> Iterator[str]:
    name = family.name + "_total" if family.kind == "counter" else family.name
    title = name if plain else family.name
    lines = [f"# HELP {title} {family.help}\n# TYPE {title} {family.kind}\n"]
    for number, (values, value) in enumerate(family.samples, start=1):
        labels = _labels(family.labels, values)
        if isinstance(value, Histogram):
            lines.extend(_buckets(name, labels, value))
        else:
            lines.append(f"{name}{{{labels}}} {_number(value)}\n" if labels else f"{name} {_number(value)}\n")
        if number % SERIES_PER_TURN == 0:
            yield "".join(lines)
            lines.clear()
    yield "".join(lines)


def _buckets(name: str, labels: str, histogram: Histogram) -> Iterable[str]:
    start = f'{name}_bucket{{{labels},le="'
    total = 0
    for edge, count in zip(_edges(tuple(histogram.edges)), histogram.counts, strict=True):
        total += count
        yield f'{start}{edge}"}} {total}\n'
    yield f"{name}_sum{{{labels}}} {_number(histogram.sum)}\n{name}_count{{{labels}}} {total}\n"


@lru_cache(maxsize=64)
def _edges(edges: tuple[float, ...]) -> tuple[str, ...]:
    return (*(repr(float(edge)) for edge in edges), "+Inf")


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    return ",".join(
        f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)
    )


def _number(value: float) -> str:
    return repr(value)
