"""Curves of results as PNG pictures; needs matplotlib, which the extra `bench` brings."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llm_runtime.bench import metrics
from llm_runtime.bench.records import RequestRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES = (8.0, 4.2)
DPI = 110
MAX_POINTS = 2000
"""Of one curve; more is not to be seen."""

SERVER_COUNTS = {
    "running": "running (server)",
    "waiting": "waiting (server)",
    "batch_size": "batch size (server)",
}

Summary = Mapping[str, Any]


def available() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def throughput_against(series: Mapping[str, Sequence[Summary]], figure: str, label: str) -> bytes:
    """One curve per series: output tokens per second and a latency in ms, a point per level."""
    highest = 0.0
    with _picture() as (axes, png):
        for name, summaries in series.items():
            points = [(s["output_throughput"], s[figure], _level(s)) for s in summaries]
            known = [point for point in points if point[0] is not None and point[1] is not None]
            axes.plot([x for x, _, _ in known], [y for _, y, _ in known], marker="o", label=name)
            highest = max([highest, *(y for _, y, _ in known)])
            for x, y, level in known:
                axes.annotate(level, (x, y), textcoords="offset points", xytext=(5, 5), fontsize=8)
        axes.set_xlabel("output tokens per second")
        axes.set_ylabel(f"{label} (ms)")
        axes.set_ylim(0, 1.12 * highest or 1.0)
        _legend(axes)
    return png.getvalue()


def shares(series: Mapping[str, Sequence[float]], label: str) -> bytes:
    """Cumulative distributions; values in seconds."""
    from matplotlib.ticker import LogFormatter, StrMethodFormatter

    with _picture() as (axes, png):
        for name, values in series.items():
            ordered = [1e3 * value for value in sorted(values)]
            heights = [(index + 1) / len(ordered) for index in range(len(ordered))]
            axes.step(
                _thinned(ordered), _thinned(heights), where="post", label=f"{name} (n = {len(ordered)})"
            )
        if all(value > 0 for values in series.values() for value in values):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.xaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.8)))
        axes.set_xlabel(f"{label} (ms)")
        axes.set_ylabel("share of samples")
        axes.set_ylim(0, 1)
        _legend(axes)
    return png.getvalue()


def timeline(records: Sequence[RequestRecord], samples: Sequence[Mapping[str, float]]) -> bytes:
    """What was in flight, as the client saw it, and what the server said of itself."""
    with _picture() as (axes, png):
        levels = _peaks(metrics.in_flight(records))
        if levels:
            instants, counts = zip(*levels, strict=True)
            axes.step(instants, counts, where="post", alpha=0.6, label="in flight (client)")
        for column, label in SERVER_COUNTS.items():
            _sampled(axes, samples, column, label)
        axes.set_xlabel("seconds since the load began")
        axes.set_ylabel("requests")
        axes.set_ylim(bottom=0)
        beside = None
        if any(column in sample for sample in samples for column in ("kv_usage", "gpu_utilization")):
            beside = axes.twinx()
            _sampled(beside, samples, "kv_usage", "KV cache", "k--")
            _sampled(beside, samples, "gpu_utilization", "GPU", "k:")
            beside.set_ylim(0, 1)
            beside.set_ylabel("share in use")
        _legend(axes, beside)
    return png.getvalue()


def _sampled(
    axes: Axes, samples: Sequence[Mapping[str, float]], column: str, label: str, style: str = ".-"
) -> None:
    points = [(sample["at_s"], sample[column]) for sample in samples if column in sample]
    if points:
        instants, values = zip(*points, strict=True)
        axes.plot(instants, values, style, label=label)


def _legend(axes: Axes, beside: Axes | None = None) -> None:
    """Above the picture, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if beside is not None:
        more_handles, more_labels = beside.get_legend_handles_labels()
        handles, labels = [*handles, *more_handles], [*labels, *more_labels]
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "frameon": False}
    axes.legend(handles, labels, ncols=min(5, max(1, len(labels))), fontsize=8, **place)


def _level(summary: Summary) -> str:
    if summary["request_rate"] not in (None, "inf"):
        return f"{summary['request_rate']:g}/s"
    return "" if summary["max_concurrency"] is None else str(summary["max_concurrency"])


def _thinned(values: Sequence[Any]) -> Sequence[Any]:
    step = -(-len(values) // MAX_POINTS) if values else 1
    return values if step == 1 else [*values[::step], values[-1]]


def _peaks(levels: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """The highest of each stretch, so that thinning hides no peak."""
    step = -(-len(levels) // MAX_POINTS) if levels else 1
    chunks = (levels[start : start + step] for start in range(0, len(levels), step))
    return [(chunk[0][0], max(level for _, level in chunk)) for chunk in chunks]


@contextmanager
def _picture() -> Iterator[tuple[Axes, io.BytesIO]]:
    """Axes to draw on, and the PNG they become at the end of the block."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(visible=True, alpha=0.3)
    png = io.BytesIO()
    yield axes, png
    figure.savefig(png, format="png", metadata={"Software": None})
