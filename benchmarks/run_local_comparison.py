"""FIFO against dynamic batching on the mock engine, a fresh server for each, at 1, 8, 16, 32, 64 clients.

A thin caller of `llm-runtime bench sweep`. The claim with bars and the simulator beside it is the scenario
`batching`. Afterwards: `python benchmarks/analyze_results.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_runtime.bench.serve_command import serve_command
from llm_runtime.commands.scripted import bench

MODES = {"fifo": "false", "dynamic": "true", "both": "false,true"}
FILE = "local-comparison.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 8, 16, 32, 64], help="clients")
    parser.add_argument("--requests", type=int, default=256, help="of each run; a p95 needs 200")
    parser.add_argument("--max-tokens", type=int, default=4, help="of an answer")
    parser.add_argument("--max-batch-size", type=int, default=8)
    parser.add_argument("--batch-timeout-ms", type=float, default=10.0)
    parser.add_argument("--prefill-latency-ms", type=float, default=25.0, help="of the mock, for a batch")
    parser.add_argument("--decode-latency-ms", type=float, default=10.0, help="of the mock, for a step")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results"))
    options = parser.parse_args(arguments)
    server = serve_command(
        "mock",
        {
            "prefill_latency_ms": options.prefill_latency_ms,
            "decode_latency_ms": options.decode_latency_ms,
            "scheduler": "fifo",
            "enable_batching": "{batching}",
            "max_batch_size": options.max_batch_size,
            "batch_timeout_ms": options.batch_timeout_ms,
        },
    )
    return bench(
        "sweep", "--server", server, "--vary", f"batching={MODES[options.mode]}",
        "--concurrencies", ",".join(map(str, options.levels)), "--repeats", str(options.repeats),
        "--requests", str(options.requests), "--output-tokens", str(options.max_tokens),
        "--input-tokens", "16", "--ignore-eos", "--output", str(options.output_dir / FILE),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
