"""One turn of one participant: started afresh, warmed up, put through its phases, stopped."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
class Running:
    """A participant that answers. server: None for the stub itself."""

    participant: Participant
    place: Place
    server: Server | None
    ready_s: float | None

    @property
    def pid(self) -> int | None:
        return self.server.pid if self.server is not None else None


@dataclass(frozen=True, slots=True)
class Bench:
    """What all turns of a run share. share: of the load, for each of those that are measured at once."""

    plan: Plan
    cores: Cores
    stub: StubServer
    share: float = 1.0

    @contextlib.contextmanager
    def started(
        self, participant: Participant, settings: Mapping[str, str] | None = None
    ) -> Iterator[Running]:
        """settings: further variables of its environment. Raises StartError or OSError."""
        with tempfile.TemporaryDirectory(prefix="overhead-") as name:
            place = Place(free_port(), self.stub.url, Path(name))
            if participant.command is None:
                yield Running(participant, replace(place, port=self.stub.port), None, None)
                return
            command = participant.command(place)
            command = replace(command, env={**command.env, **(settings or {})})
            with Server(command, self.cores.participant, place.folder / "log.txt") as server:
                ready_s = wait_until_serving(server, place.port, participant.model, participant.headers)
                yield Running(participant, place, server, ready_s)

    def take_turn(self, participant: Participant, round_number: int) -> Turn:
        """Never raises for the participant's sake: what went wrong is in the turn."""
        turn = Turn(participant.name, round_number)
        try:
            with self.started(participant) as running:
                return self._measure(running, replace(turn, ready_s=running.ready_s))
        except (StartError, LoadError, OSError, subprocess.TimeoutExpired) as error:
            return replace(turn, problem=str(error))

    def _measure(self, running: Running, turn: Turn) -> Turn:
        if running.server is not None:
            for phase in self.warm_up(running):
                run_load(phase, self.cores)
        before = self.stub.num_requests
        results: dict[PhaseName, Result] = {}
        for name in self.plan.phases:
            if name in running.participant.phases:
                self.set_pace(name)
                results[name] = run_load(self.phase(name, running, turn.round_number), self.cores)
        return self.closed(
            replace(turn, results=results),
            running,
            sent=sum(result.num_sent for result in results.values()),
            reached=self.stub.num_requests - before,
        )

    def closed(self, turn: Turn, running: Running, *, sent: int, reached: int) -> Turn:
        """With what is to be told at the end. sent, reached: requests of the client, and at the stub."""
        memory = procs.memory(running.pid) if running.pid is not None else None
        server = running.server
        return replace(
            turn,
            peak_bytes=memory.peak if memory else None,
            resident_bytes=memory.resident if memory else None,
            num_processes=memory.num_processes if memory else None,
            upstream_requests=reached,
            client_requests=sent,
            problem=f"it died: {server.tail()}" if server is not None and not server.is_alive else None,
        )

    def set_pace(self, name: PhaseName) -> None:
        self.stub.set_pace(self.plan.gap_s, "steps" if name == "steps" else "own")

    def warm_up(self, running: Running) -> Sequence[Phase]:
        """Lazy imports, connections and caches must not be part of the first window."""
        self.stub.set_pace(self.plan.gap_s, "own")
        streams = self.phase("streams", running, -1)
        plain = self.phase("plain", running, -1)
        return [
            replace(streams, num_tokens=16, window_s=WARM_UP_S / 2, root_pid=None),
            replace(plain, window_s=WARM_UP_S / 2, root_pid=None),
        ]

    def phase(self, name: PhaseName, running: Running, round_number: int) -> Phase:
        plan, participant = self.plan, running.participant
        share = participant.load_share * self.share
        is_plain = name in ("plain", "paced")
        at_once = plan.concurrency if is_plain else max(1, round(plan.streams * share))
        rate_per_s = plan.plain_rate_per_s if name == "paced" else plan.rate_per_s
        return Phase(
            kind=KINDS[name],
            host="127.0.0.1",
            port=running.place.port,
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
            root_pid=running.pid,
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
