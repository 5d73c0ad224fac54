"""One turn of one participant: started afresh, warmed up, put through its phases, stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.overhead import procs
from benchmarks.overhead.participants import ROOT, Participant, Place
from benchmarks.overhead.phase import Kind, Phase, Result
from benchmarks.overhead.plan import PhaseName, Plan
from benchmarks.overhead.servers import (
    Command,
    Cores,
    Server,
    StartError,
    free_port,
    on_cores,
    request,
    wait_until_serving,
)

WARM_UP_S = 1.0
LOAD_TIMEOUT_S = 120.0
KINDS: dict[PhaseName, Kind] = {
    "streams": "streams", "steps": "streams", "plain": "plain", "paced": "paced", "poisson": "poisson",
}  # fmt: skip


class LoadError(Exception):
    """The load's process failed; the text says how."""


@dataclass(frozen=True, slots=True)
class Turn:
    """results: by phase. upstream_requests, client_requests: inference requests during the phases; they
    differ when something answers from a cache, asks twice or retries. problem: why there is no more.
    """

    participant: str
    round_number: int
    results: dict[PhaseName, Result] = field(default_factory=dict)
    ready_s: float | None = None
    peak_bytes: int | None = None
    resident_bytes: int | None = None
    num_processes: int | None = None
    upstream_requests: int = 0
    client_requests: int = 0
    problem: str | None = None


class StubServer:
    """The stub, running until the block is left."""

    def __init__(self, cores: Cores, folder: Path) -> None:
        self.port = free_port()
        argv = [sys.executable, "-m", "benchmarks.overhead.stub_upstream", "--port", str(self.port)]
        self.server = Server(Command(argv, cwd=ROOT), cores.load, folder / "stub.log")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def num_requests(self) -> int:
        return self._count("num_requests")

    @property
    def num_streams(self) -> int:
        """Under way at the moment."""
        return self._count("num_streams")

    def set_pace(self, gap_s: float, pace: str) -> None:
        request(self.port, "POST", "/stub", {"gap_s": gap_s, "pace": pace})

    def _count(self, name: str) -> int:
        return int(json.loads(request(self.port, "GET", "/stub")[1])[name])

    def __enter__(self) -> StubServer:
        wait_until_serving(self.server, self.port, "stub", {})
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()


@dataclass(frozen=True, slots=True)
class Bench:
    """What all turns of a run share."""

    plan: Plan
    cores: Cores
    stub: StubServer

    def take_turn(self, participant: Participant, round_number: int) -> Turn:
        """Never raises for the participant's sake: what went wrong is in the turn."""
        turn = Turn(participant.name, round_number)
        with tempfile.TemporaryDirectory(prefix="overhead-") as name:
            place = Place(free_port(), self.stub.url, Path(name))
            if participant.command is None:
                place = replace(place, port=self.stub.port)
                return self._measure(participant, place, turn, None)
            log = place.folder / "log.txt"
            try:
                with Server(participant.command(place), self.cores.participant, log) as server:
                    ready_s = wait_until_serving(server, place.port, participant.model, participant.headers)
                    turn = self._measure(participant, place, replace(turn, ready_s=ready_s), server)
                    if not server.is_alive:
                        turn = replace(turn, problem=f"it died: {server.tail()}")
                    return turn
            except (StartError, LoadError, OSError, subprocess.TimeoutExpired) as error:
                return replace(turn, problem=str(error))

    def _measure(self, participant: Participant, place: Place, turn: Turn, server: Server | None) -> Turn:
        pid = server.pid if server is not None else None
        if server is not None:
            for phase in self._warm_up(participant, place):
                run_load(phase, self.cores)
        before = self.stub.num_requests
        results: dict[PhaseName, Result] = {}
        for name in self.plan.phases:
            if name in participant.phases:
                self.stub.set_pace(self.plan.gap_s, "steps" if name == "steps" else "own")
                results[name] = run_load(
                    self.phase(name, participant, place, turn.round_number, pid), self.cores
                )
        memory = procs.memory(pid) if pid is not None else None
        return replace(
            turn,
            results=results,
            peak_bytes=memory.peak if memory else None,
            resident_bytes=memory.resident if memory else None,
            num_processes=memory.num_processes if memory else None,
            upstream_requests=self.stub.num_requests - before,
            client_requests=sum(result.num_sent for result in results.values()),
        )

    def _warm_up(self, participant: Participant, place: Place) -> Sequence[Phase]:
        """Lazy imports, connections and caches must not be part of the first window."""
        self.stub.set_pace(self.plan.gap_s, "own")
        streams = self.phase("streams", participant, place, -1, None)
        plain = self.phase("plain", participant, place, -1, None)
        return [
            replace(streams, num_tokens=16, window_s=WARM_UP_S / 2),
            replace(plain, window_s=WARM_UP_S / 2),
        ]

    def phase(
        self, name: PhaseName, participant: Participant, place: Place, round_number: int, pid: int | None
    ) -> Phase:
        plan, share = self.plan, participant.load_share
        is_plain = name in ("plain", "paced")
        at_once = plan.concurrency if is_plain else max(1, round(plan.streams * share))
        rate_per_s = plan.plain_rate_per_s if name == "paced" else plan.rate_per_s
        return Phase(
            kind=KINDS[name],
            host="127.0.0.1",
            port=place.port,
            model=participant.model,
            headers=participant.headers,
            window_s=plan.window_s(name),
            warmup_s=plan.warmup_s,
            seed=plan.seed + 1000 * round_number,
            salt=f"{participant.name} {round_number} {name} ",
            concurrency=at_once,
            num_tokens=plan.num_tokens,
            gap_s=plan.gap_s,
            rate_per_s=rate_per_s * share,
            root_pid=pid,
            stub_pid=self.stub.server.pid,
            driver_pid=os.getpid(),
        )


def run_load(phase: Phase, cores: Cores) -> Result:
    """In a process of its own; blocks until it ends. Raises LoadError."""
    with on_cores(cores.load):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.overhead.load"],
            input=json.dumps(phase_json(phase)), text=True, capture_output=True, cwd=ROOT,
            timeout=LOAD_TIMEOUT_S + phase.window_s, check=False,
        )  # fmt: skip
    if done.returncode:
        raise LoadError(f"the load ended with status {done.returncode}: {done.stderr[-1000:]}")
    return Result.from_json(json.loads(done.stdout))


def phase_json(phase: Phase) -> dict[str, Any]:
    members = {name: getattr(phase, name) for name in Phase.__dataclass_fields__}
    return {**members, "headers": dict(phase.headers)}
