"""The process that makes the load: a phase as JSON on standard input, its result on standard output."""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.overhead.phase import Phase
from benchmarks.overhead.phases import run
from benchmarks.overhead.stub_upstream import ExactSelector
from llm_runtime.bench import clock


def main() -> None:
    phase = Phase(**json.load(sys.stdin))
    clock.allow_many_connections()
    try:
        with asyncio.Runner(loop_factory=_exact_loop) as runner, clock.quiet_collector():
            result = runner.run(run(phase))
    except OSError as error:
        sys.exit(f"nobody listens at {phase.host}:{phase.port}: {error}")
    json.dump(result.to_json(), sys.stdout)


def _exact_loop() -> asyncio.AbstractEventLoop:
    """Arrivals must not be rounded to milliseconds."""
    return asyncio.SelectorEventLoop(ExactSelector())


if __name__ == "__main__":
    main()
