"""What `run_local_comparison.py`, or any sweep, found: tokens per second and latencies by level, every
setting by the first, and the curve of throughput against p95 as a picture.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from llm_runtime.bench import plots
from llm_runtime.bench.present import number
from llm_runtime.bench.report import WITHOUT_PLOTS, throughput_curve
from llm_runtime.bench.sweep_tables import gains, rows_of

COLUMNS = {"output_throughput": "tokens/s", "mean_ttft_ms": "TTFT mean", "mean_e2el_ms": "E2E mean",
           "p95_e2el_ms": "E2E p95", "queue_wait_ms": "queue wait", "failed": "failed"}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("result", type=Path, nargs="?", default=Path("bench-results/local-comparison.json"))
    parser.add_argument("--output-dir", type=Path, help="for the curve; beside the result by default")
    options = parser.parse_args(arguments)
    body = orjson.loads(options.result.read_bytes())
    rows = rows_of(body)
    print(f"{body['parameter']:>12}" + "".join(f"{name:>12}" for name in COLUMNS.values()) + "  server (ms)")
    for row in rows:
        figures = "".join(f"{number(row.figures[key]):>12}" for key in COLUMNS)
        print(f"{row.level:>12g}{figures}  {row.name}")
    for row, ratios in gains(rows):
        change = "".join(f"{_percent(ratios[key]) if key in ratios else '':>12}" for key in COLUMNS)
        print(f"{row.level:>12g}{change}  {row.name}, against {rows[0].name}")
    if not plots.available():
        print(WITHOUT_PLOTS, file=sys.stderr)
        return 0
    picture, quantile = throughput_curve(body)
    path = (options.output_dir or options.result.parent) / f"throughput-vs-{quantile}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture)
    print(f"written: {path}")
    return 0


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio - 1:+.1%}"


if __name__ == "__main__":
    sys.exit(main())
