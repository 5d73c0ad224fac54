"""FIFO, strict priority and ageing for urgent requests behind a queue of others, on the mock engine.

A thin caller of the scenario `priority`, which fixes the load; the TTFT beyond which a request of low
priority counts as starved can be another one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from llm_runtime.bench.present import number
from llm_runtime.bench.scenarios.priority import ARMS, TTFT_BUDGET_S
from llm_runtime.bench.sim.fairness import starved_share
from llm_runtime.commands.scripted import bench

COLUMNS = {"high_mean_ttft_ms": "high TTFT", "low_mean_ttft_ms": "low TTFT", "low_worst_ttft_ms": "low worst"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--ttft-budget-ms", type=float, default=1e3 * TTFT_BUDGET_S, help="of requests of low priority"
    )
    parser.add_argument("--quick", action="store_true", help="one round instead of five")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results"))
    options = parser.parse_args(arguments)
    quick = ["--quick"] if options.quick else []
    status = bench("scenario", "run", "priority", "--results", str(options.output_dir), quick)
    if status:
        return status
    path = options.output_dir / f"priority{'-quick' if options.quick else ''}.json"
    body = orjson.loads(path.read_bytes())
    print(f"\n{'':<12}" + "".join(f"{name:>12}" for name in COLUMNS.values()) + f"{'starved':>12}  (ms)")
    for name in ARMS:
        figures = "".join(f"{number(body['figures'][f'{name}_{key}']):>12}" for key in COLUMNS)
        rounds = body["details"]["low_ttfts_ms"][name]
        starved = statistics.fmean(starved_share(each, options.ttft_budget_ms) or 0.0 for each in rounds)
        print(f"{name:<12}{figures}{starved:>12.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
