"""Load on one server, closed loop: `python benchmarks/run_load_test.py --base-url URL --concurrency 8`.

A thin caller of `llm-runtime bench run`, which has many more options.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from llm_runtime.commands.scripted import bench


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000", help="of an OpenAI-compatible server")
    parser.add_argument("--concurrency", type=int, default=8, help="clients, each with one request at a time")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--input-tokens", type=int, default=32, help="of a prompt, about")
    parser.add_argument("--output", default="bench-results/load-test.json", help="result; records beside it")
    parser.add_argument("more", nargs="*", help="further options of `llm-runtime bench run`, after --")
    options = parser.parse_args(arguments)
    return bench(
        "run", options.base_url.removesuffix("/v1"), "--concurrency", str(options.concurrency),
        "--requests", str(options.requests), "--output-tokens", str(options.max_tokens),
        "--input-tokens", str(options.input_tokens), "--output", options.output, options.more,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
