"""Which batch size and timeout of `run_batch_sweep.py` gives most, and within a limit of latency."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from llm_runtime.bench.present import number
from llm_runtime.bench.sweep_tables import best, rows_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Ends with 1 when no setting is within the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, nargs="?", default=Path("bench-results/batch-sweep.json"))
    parser.add_argument("--max-p95-ms", type=float, help="settings with a higher p95 of E2E are left out")
    options = parser.parse_args(arguments)
    ranked = best(rows_of(orjson.loads(options.result.read_bytes())), options.max_p95_ms)
    if not ranked:
        print("no setting is within the limit, or too few requests were sent for a p95", file=sys.stderr)
        return 1
    print(f"at {ranked[0].level:g} clients, best first")
    print(f"{'tokens/s':>12}{'TTFT mean':>12}{'E2E p95':>12}  server (ms)")
    for row in ranked:
        keys = ("output_throughput", "mean_ttft_ms", "p95_e2el_ms")
        print("".join(f"{number(row.figures[key]):>12}" for key in keys) + f"  {row.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
