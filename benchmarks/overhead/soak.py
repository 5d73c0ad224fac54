"""Whether memory stays where it is: over very many unique requests, and under readers that do not read.

Memory is sampled from outside. What counts as growth begins after a fifth of the requests: until
then caches that are meant to fill may fill.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.overhead import procs
from benchmarks.overhead.participants import ROOT, Participant
from benchmarks.overhead.phase import Phase, Result
from benchmarks.overhead.plan import Plan
from benchmarks.overhead.servers import Cores, StartError, on_cores
from benchmarks.overhead.turn import Bench, LoadError, Running, StubServer, phase_json, run_load

CHUNK_S = 4.0
SETTLED_SHARE = 0.2
STALLED_TOKENS = 10_000_000
"""Without end."""
STALL_S = 20.0
"""Below the 30 s after which a client that reads nothing is cut off."""
BESIDE_S = 4.0
RECOVERY_S = 3.0
SAMPLE_S = 0.25
MAX_GROWTH_BYTES = 10_000_000
MAX_STALLED_BYTES = 512 * 1024
"""Per reader that does not read: 256 KiB of ours, the server's write buffer, objects."""


@dataclass(frozen=True, slots=True)
class Sample:
    """at: requests answered so far, or seconds."""

    at: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Soak:
    """Of one participant. bystanders: streams beside the readers that do not read."""

    participant: str
    requests: Sequence[Sample] = ()
    stalled: Sequence[Sample] = ()
    num_stalled: int = 0
    bystanders: Result | None = None
    failures: dict[str, int] = field(default_factory=dict)
    problem: str | None = None

    @property
    def growth_bytes(self) -> int | None:
        """From the first sample after a fifth of the requests to the last."""
        settled = self._settled
        return settled[-1].resident_bytes - settled[0].resident_bytes if len(settled) > 1 else None

    @property
    def slope_bytes(self) -> float | None:
        """Per request, by least squares over the same samples."""
        settled = self._settled
        if len(settled) < 3:
            return None
        mean_at = sum(sample.at for sample in settled) / len(settled)
        mean = sum(sample.resident_bytes for sample in settled) / len(settled)
        spread = sum((sample.at - mean_at) ** 2 for sample in settled)
        return sum((s.at - mean_at) * (s.resident_bytes - mean) for s in settled) / spread

    @property
    def stalled_bytes(self) -> float | None:
        """Per reader that does not read, at the highest."""
        if not self.stalled or not self.num_stalled:
            return None
        highest = max(sample.resident_bytes for sample in self.stalled)
        return (highest - self.stalled[0].resident_bytes) / self.num_stalled

    @property
    def passed(self) -> bool:
        growth, stalled = self.growth_bytes, self.stalled_bytes
        return (
            self.problem is None
            and not self.failures
            and growth is not None
            and growth <= MAX_GROWTH_BYTES
            and stalled is not None
            and stalled <= MAX_STALLED_BYTES
        )

    @property
    def _settled(self) -> list[Sample]:
        if not self.requests:
            return []
        return [sample for sample in self.requests if sample.at >= SETTLED_SHARE * self.requests[-1].at]


def soak(plan: Plan, participant: Participant, num_requests: int, num_stalled: int,
         told: Callable[[str], None]) -> Soak:  # fmt: skip
    """Blocks for minutes. What went wrong is in the result."""
    cores = Cores.choose(pinned=plan.pinned)
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder, StubServer(cores, Path(folder)) as stub:
        bench = Bench(plan, cores, stub)
        found = Soak(participant.name, num_stalled=num_stalled)
        try:
            with bench.started(participant) as running:
                runner = _Runner(bench, running, told)
                found = runner.plain(found, num_requests)
                return runner.stalled(found)
        except (StartError, LoadError, OSError, subprocess.TimeoutExpired) as error:
            return replace(found, problem=str(error))


@dataclass(frozen=True, slots=True)
class _Runner:
    bench: Bench
    running: Running
    told: Callable[[str], None]

    def plain(self, found: Soak, num_requests: int) -> Soak:
        samples, failures, done = [], dict(found.failures), 0
        base = self.bench.phase("plain", self.running, 0)
        while done < num_requests and not failures:
            phase = replace(base, window_s=CHUNK_S, warmup_s=0.0, salt=f"soak {done} ")
            result = run_load(phase, self.bench.cores)
            failures.update(result.failures)
            done += result.num_sent
            samples.append(Sample(done, self._resident_bytes()))
            self.told(
                f"{self.running.participant.name}: {done} requests, {samples[-1].resident_bytes / 1e6:.1f} MB"
            )
        return replace(found, requests=samples, failures=failures)

    def stalled(self, found: Soak) -> Soak:
        """The stub writes as fast as it may; then others stream at the usual pace beside it."""
        stub = self.bench.stub
        stub.set_pace(0.0, "own")
        base = self.bench.phase("streams", self.running, 0)
        stalled = replace(base, kind="stalled", window_s=STALL_S, warmup_s=0.0,
                          concurrency=found.num_stalled, num_tokens=STALLED_TOKENS)  # fmt: skip
        samples: list[Sample] = []
        stopped = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(samples, stopped))
        sampler.start()
        try:
            time.sleep(1.0)
            with on_cores(self.bench.cores.load), _started(stalled) as process:
                time.sleep(STALL_S / 2)
                num_held = stub.num_streams
                stub.set_pace(self.bench.plan.gap_s, "own")
                bystanders = self.bench.phase("poisson", self.running, 0)
                beside = run_load(replace(bystanders, window_s=BESIDE_S), self.bench.cores)
                if process.poll() is None:
                    num_held = max(num_held, stub.num_streams)
                output, _ = process.communicate(timeout=60)
            time.sleep(RECOVERY_S)
        finally:
            stopped.set()
            sampler.join()
        if not output:
            raise LoadError("the stalled readers failed")
        failures = {**found.failures, **json.loads(output)["failures"], **beside.failures}
        if num_held < found.num_stalled:
            failures["cut before their time"] = found.num_stalled - num_held
        return replace(found, stalled=samples, bystanders=beside, failures=failures)

    def _resident_bytes(self) -> int:
        assert self.running.pid is not None
        return procs.memory(self.running.pid).resident

    def _sample(self, samples: list[Sample], stopped: threading.Event) -> None:
        begun_at = time.monotonic()
        while not stopped.wait(SAMPLE_S):
            samples.append(Sample(time.monotonic() - begun_at, self._resident_bytes()))


def _started(phase: Phase) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.overhead.load"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdin is not None
    json.dump(phase_json(phase), process.stdin)
    process.stdin.close()
    process.stdin = None  # communicate would flush it
    return process
