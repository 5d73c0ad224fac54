"""The process that makes the load: a phase as JSON on standard input, its result on standard output."""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.overhead.phase import Phase
from benchmarks.overhead.phases import run
from llm_runtime.bench import clock


def main() -> None:
    phase = Phase(**json.load(sys.stdin))
    clock.allow_many_connections()
    with asyncio.Runner(loop_factory=clock.new_loop) as runner, clock.quiet_collector():
        result = runner.run(run(phase))
    json.dump(result.to_json(), sys.stdout)


if __name__ == "__main__":
    main()
