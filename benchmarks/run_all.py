"""The set that `make bench` runs: load on the embedded model, FIFO against dynamic batching, batch size by
timeout, priorities, Transformers against vLLM and llama.cpp; then tables, curves and one page of it all.
About eight minutes, --quick about two; with `make vllm-env` a quarter hour more, --quick two minutes.

Results go to benchmarks/results/, those of a quick run to build/bench/, where they replace nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from llm_runtime.bench.launch import launched

ROOT = Path(__file__).resolve().parents[1]
EMBEDDED = "llm-runtime serve --port {port}"
URL = "{url}"  # a word for the address of the server to replace


@dataclass(frozen=True, slots=True)
class Step:
    """script: of this folder. server: started for it alone, its address replaces URL. limit_s: then it is
    ended and counts as failed."""

    script: str
    arguments: tuple[str, ...]
    limit_s: float
    server: str | None = None


def steps(folder: Path, *, quick: bool) -> Iterator[Step]:
    output = ("--output-dir", str(folder))
    few = ("--requests", "32")
    load = ("--requests", "8", "--max-tokens", "8") if quick else ("--requests", "48", "--max-tokens", "32")
    yield Step(
        "run_load_test.py",
        ("--base-url", URL, "--concurrency", "8", *load, "--output", str(folder / "load-test.json"),
         "--", "--ignore-eos"),
        240, EMBEDDED,
    )  # fmt: skip
    compared = ("--levels", "1", "8", "64", *few) if quick else ()
    yield Step("run_local_comparison.py", (*output, *compared), 300)
    yield Step("analyze_results.py", (str(folder / "local-comparison.json"), *output), 60)
    swept = ("--batch-sizes", "4", "16", "--timeouts", "10", *few) if quick else ()
    yield Step("run_batch_sweep.py", (*output, *swept), 240)
    yield Step("analyze_batch_sweep.py", (str(folder / "batch-sweep.json"),), 60)
    yield Step("run_priority_scheduler_benchmark.py", (*output, *(("--quick",) if quick else ())), 240)
    yield Step(
        "run_engine_comparison.py", (*output, *(("--quick",) if quick else ())), 600 if quick else 1800
    )
    yield Step("generate_report.py", ("--results-dir", str(folder)), 120)


async def done(step: Step) -> bool:
    """Runs it; whether it ended well and in time."""
    async with AsyncExitStack() as stack:
        url = (
            await stack.enter_async_context(launched(step.server, {}, "/health/ready")) if step.server else ""
        )
        arguments = [url if word == URL else word for word in step.arguments]
        print(f"\n== {step.script} {' '.join(arguments)}", flush=True)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(ROOT / "benchmarks" / step.script), *arguments
        )
        try:
            return await asyncio.wait_for(process.wait(), step.limit_s) == 0
        except TimeoutError:
            print(f"{step.script} is not done after {step.limit_s:g} s", file=sys.stderr)
            return False
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def run(folder: Path, *, quick: bool) -> list[str]:
    """Names of the scripts that failed. What follows is run all the same."""
    return [step.script for step in steps(folder, quick=quick) if not await done(step)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, results to build/bench")
    parser.add_argument("--output-dir", type=Path)
    options = parser.parse_args(arguments)
    default = ROOT / "build" / "bench" if options.quick else ROOT / "benchmarks" / "results"
    folder: Path = options.output_dir or default
    folder.mkdir(parents=True, exist_ok=True)
    failed = asyncio.run(run(folder, quick=options.quick))
    print(f"\nwritten to {folder}" if not failed else f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
