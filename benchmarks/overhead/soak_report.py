"""Memory over time, as JSON, Markdown and, where matplotlib is installed, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.overhead.soak import MAX_GROWTH_BYTES, MAX_STALLED_BYTES, Soak

SCHEMA = "llm-runtime/gateway-memory/1"


def as_json(soaks: Sequence[Soak], command: str, environment: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "command": command,
        "environment": environment,
        "bars": {"growth_bytes": MAX_GROWTH_BYTES, "stalled_bytes_per_reader": MAX_STALLED_BYTES},
        "soaks": [_soak(soak) for soak in soaks],
    }


def _soak(soak: Soak) -> dict[str, Any]:
    members = asdict(soak)
    if soak.bystanders is not None:
        del members["bystanders"]["ttfts_s"]
    return {
        **members,
        "growth_bytes": soak.growth_bytes,
        "slope_bytes_per_request": soak.slope_bytes,
        "stalled_bytes_per_reader": soak.stalled_bytes,
        "passed": soak.passed,
    }


def as_markdown(soaks: Sequence[Soak]) -> str:
    lines = [
        "| | requests | growth, MB | bytes per request | readers stalled | KiB per reader "
        "| others' token delay, p99 ms | |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for soak in soaks:
        delay = None if soak.bystanders is None else soak.bystanders.quantiles.get("delay_s")
        cells = [
            soak.participant,
            f"{soak.requests[-1].at:.0f}" if soak.requests else "-",
            _shown(soak.growth_bytes, 1e6, 1),
            _shown(soak.slope_bytes, 1, 1),
            str(soak.num_stalled),
            _shown(soak.stalled_bytes, 1024, 0),
            _shown(delay["p99"] if delay else None, 1e-3, 2),
            "passed" if soak.passed else f"FAILED {soak.problem or soak.failures or ''}".strip(),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _shown(value: float | None, unit: float, digits: int) -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}"


def draw(soaks: Sequence[Soak], path: Path) -> bool:
    """Two panels; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for soak in soaks:
        for axes, samples in ((left, soak.requests), (right, soak.stalled)):
            axes.plot(
                [s.at for s in samples], [s.resident_bytes / 1e6 for s in samples], label=soak.participant
            )
    left.set(xlabel="plain requests, each with a prompt of its own", ylabel="resident memory, MB")
    right.set(xlabel="seconds", title="streams that nobody reads, and their end")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path)
    pyplot.close(figure)
    return True
