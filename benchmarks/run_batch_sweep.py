"""Every batch size with every batch timeout on the mock engine, a fresh server for each.

A thin caller of `llm-runtime bench sweep`. Afterwards: `python benchmarks/analyze_batch_sweep.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_runtime.bench.serve_command import serve_command
from llm_runtime.commands.scripted import bench

FILE = "batch-sweep.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--timeouts", type=float, nargs="+", default=[5.0, 10.0, 20.0], help="ms")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[32], help="clients")
    parser.add_argument("--requests", type=int, default=256, help="of each run; a p95 needs 200")
    parser.add_argument("--max-tokens", type=int, default=4, help="of an answer")
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
            "max_batch_size": "{size}",
            "batch_timeout_ms": "{timeout_ms}",
        },
    )
    return bench(
        "sweep", "--server", server,
        "--vary", f"size={','.join(map(str, options.batch_sizes))}",
        "--vary", f"timeout_ms={','.join(f'{each:g}' for each in options.timeouts)}",
        "--concurrencies", ",".join(map(str, options.concurrency)), "--repeats", str(options.repeats),
        "--requests", str(options.requests), "--output-tokens", str(options.max_tokens),
        "--input-tokens", "16", "--ignore-eos", "--output", str(options.output_dir / FILE),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
