"""The one-at-a-time control (serve/baseline_hf.py) against vLLM and llama.cpp on the same weights, at rising
concurrency: scenario `engines`, its table, and the curve of throughput against p95. Needs `make vllm-env`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from llm_runtime.bench import plots
from llm_runtime.bench.present import number
from llm_runtime.bench.report import WITHOUT_PLOTS
from llm_runtime.bench.vllm_host import Host
from llm_runtime.commands.scripted import bench
from llm_runtime.core.errors import ConfigError

COLUMNS = {
    "tokens_per_s": "tokens/s",
    "median_ttft_ms": "TTFT",
    "median_e2el_ms": "E2E",
    "p95_e2el_ms": "E2E p95",
}
_FIGURE = re.compile(rf"(.+)_({'|'.join(COLUMNS)})_at_(\d+)")

Table = Mapping[str, Mapping[int, Mapping[str, float | None]]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results"))
    options = parser.parse_args(arguments)
    try:
        Host().interpreter()
    except ConfigError as error:
        print(f"not run: {error}", file=sys.stderr)
        return 0
    quick = ["--quick"] if options.quick else []
    code = bench("scenario", "run", "engines", "--check", "--results", str(options.output_dir), quick)
    path = options.output_dir / f"engines{'-quick' if options.quick else ''}.json"
    if not path.exists():
        return code or 1
    found = by_engine(orjson.loads(path.read_bytes())["figures"])
    print("\n".join(lines(found)))
    if not plots.available():
        print(WITHOUT_PLOTS, file=sys.stderr)
        return code
    picture, quantile = curve(found)
    drawn = options.output_dir / f"engines-throughput-vs-{quantile}.png"
    drawn.write_bytes(picture)
    print(f"written: {drawn}")
    return code


def by_engine(figures: Mapping[str, float | None]) -> Table:
    """The scenario's figures by engine, concurrency and column."""
    found: dict[str, dict[int, dict[str, float | None]]] = {}
    for name, value in figures.items():
        if match := _FIGURE.fullmatch(name):
            found.setdefault(match[1], {}).setdefault(int(match[3]), {})[match[2]] = value
    return found


def lines(found: Table) -> list[str]:
    """A row for each engine and level; latencies in ms."""
    head = f"{'clients':>12}" + "".join(f"{word:>12}" for word in COLUMNS.values()) + "  engine (ms)"
    return [head] + [
        f"{level:>12}" + "".join(f"{number(row.get(key)):>12}" for key in COLUMNS) + f"  {engine}"
        for engine, levels in found.items()
        for level, row in sorted(levels.items())
    ]


def curve(found: Table) -> tuple[bytes, str]:
    """The picture, and which latency it shows: the p95, or the median where too few requests were sent."""
    rows = [row for levels in found.values() for row in levels.values()]
    quantile = "p95" if all(row.get("p95_e2el_ms") is not None for row in rows) else "median"
    key = f"{quantile}_e2el_ms"
    series: dict[str, list[dict[str, Any]]] = {
        engine: [
            {
                "output_throughput": row["tokens_per_s"],
                key: row[key],
                "request_rate": None,
                "max_concurrency": level,
            }
            for level, row in sorted(levels.items())
        ]
        for engine, levels in found.items()
    }
    return plots.throughput_against(series, key, f"{quantile} E2E"), quantile


if __name__ == "__main__":
    sys.exit(main())
