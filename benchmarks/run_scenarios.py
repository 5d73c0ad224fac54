"""Scenarios one after the other, each in a process of its own: all, or those named.

    python benchmarks/run_scenarios.py [--quick] [NAME ...]

Ends with 1 when one misses a bar or cannot be run, after all of them were tried.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_runtime.bench.scenario import all_scenarios

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(sys.executable).with_name("llm-runtime")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a scenario; all by default")
    parser.add_argument("--quick", action="store_true", help="each under two minutes, results to build/bench")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args(arguments)
    default = ROOT / "build" / "bench" if options.quick else ROOT / "benchmarks" / "results"
    folder: Path = options.results or default
    quick = ["--quick"] if options.quick else []
    missed = []
    for name in options.names or all_scenarios():
        print(f"\n== {name}", flush=True)
        command = [
            str(PROGRAM),
            "bench",
            "scenario",
            "run",
            name,
            "--check",
            "--results",
            str(folder),
            *quick,
        ]
        if subprocess.run(command, check=False).returncode:
            missed.append(name)
    if missed:
        print(f"\nmissed a bar, or could not be run: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
