"""The load that a compiled build is made by: `python -m benchmarks.overhead.train`, with the Python of a
build that records what it does. Ours before the stub, streams and plain requests as a gateway gets them:
passed on as they are, rewritten, and with so few slots that they queue. Nothing is measured. Ends with
status 1 where not everything was answered."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.overhead import participants
from benchmarks.overhead.plan import QUICK, PhaseName
from benchmarks.overhead.servers import Cores
from benchmarks.overhead.turn import Bench, StubServer, run_load

FEW_SLOTS = {"LLM_RUNTIME_ENGINES__NATIVE_BACKEND_CONCURRENCY": "12"}
KINDS: tuple[tuple[str, dict[str, str]], ...] = (
    (participants.OURS, {}),
    (participants.REWRITE, {}),
    (participants.OURS, FEW_SLOTS),
)
PHASES: tuple[PhaseName, ...] = ("streams", "plain")
PLAN = replace(QUICK, streams=16, num_tokens=32, gap_s=0.005)


def main() -> int:
    cores = Cores(None, None)
    failures: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="train-") as name, StubServer(cores, Path(name)) as stub:
        bench = Bench(PLAN, cores, stub)
        for kind, settings in KINDS:
            # What was recorded is written when the server ends by itself.
            with bench.started(participants.known()[kind], settings) as running:
                for phase in PHASES:
                    stub.set_pace(PLAN.gap_s, "own")
                    failures.update(run_load(bench.phase(phase, running, 0), cores).failures)
    if failures:
        sys.stderr.write(f"not everything was answered: {failures}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
