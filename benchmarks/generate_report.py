"""One self-contained page (.html or .md) of all results in a folder.

A thin caller of `llm-runtime bench report`; files of other kinds are passed over.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from llm_runtime.bench.report import SCHEMAS
from llm_runtime.commands.scripted import bench


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--results-dir", type=Path, default=Path("bench-results"))
    parser.add_argument("--output", type=Path, help="report.html in that folder by default")
    parser.add_argument("--title", default="Benchmark report")
    options = parser.parse_args(arguments)
    results = [str(path) for path in sorted(options.results_dir.glob("*.json")) if is_result(path)]
    if not results:
        print(f"no results in {options.results_dir}", file=sys.stderr)
        return 2
    output = options.output or options.results_dir / "report.html"
    return bench("report", results, "--output", str(output), "--title", options.title)


def is_result(path: Path) -> bool:
    try:
        body = orjson.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("schema") in SCHEMAS


if __name__ == "__main__":
    sys.exit(main())
