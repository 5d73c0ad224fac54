"""Instructions of a program's own, counted by valgrind's callgrind while requests go through it one by one.

The count is of what the program and its libraries execute, without the kernel, and is the same on a busy
machine as on a quiet one. It says nothing of caches and branches that miss, and takes fifty times as long.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.overhead import procs
from benchmarks.overhead.participants import Participant, Place
from benchmarks.overhead.servers import Command, Cores, Server, free_port, wait_until_serving
from benchmarks.overhead.turn import StubServer

TOOLS = ("valgrind", "callgrind_control")
GAP_S = 0.01
NUM_TOKENS = 64
NUM_PLAIN = 100
NUM_STREAMS = 6
WARM_UP = 40
IDLE_S = 3.0
_TOTAL = re.compile(rb"^(?:summary|totals): (\d+)", re.MULTILINE)


class NotCounted(Exception):
    """Why there is no figure."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Instructions: of a plain request, of a streamed token (a stream of NUM_TOKENS with its beginning and
    end, by its tokens), and of a second in which nothing is asked, which is taken off the other two."""

    plain: float
    token: float
    idle_per_s: float


def missing_tools() -> list[str]:
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def count(participant: Participant, folder: Path) -> Counted:
    """Starts the stub and the participant, each by itself. Blocks for a minute or more. Raises NotCounted,
    and StartError where it does not come up."""
    nowhere = Cores(None, None)
    with StubServer(nowhere, folder) as stub:
        stub.set_pace(GAP_S, "own")
        place = Place(free_port(), stub.url, folder)
        assert participant.command is not None
        command = participant.command(place)
        with Server(_counted(command, folder), None, folder / "log.txt") as server:
            wait_until_serving(server, place.port, participant.model, participant.headers)
            with contextlib.closing(_Asker(place.port, participant)) as asker:
                asker.plain(WARM_UP)
                asker.streams(2)
                counter = _Counter(server.pid, folder)
                idle_per_s = counter.during(lambda: time.sleep(IDLE_S)).per_s
                plain = counter.during(lambda: asker.plain(NUM_PLAIN)).without(idle_per_s)
                streams = counter.during(lambda: asker.streams(NUM_STREAMS)).without(idle_per_s)
    return Counted(plain / NUM_PLAIN, streams / (NUM_STREAMS * NUM_TOKENS), idle_per_s)


def _counted(command: Command, folder: Path) -> Command:
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--trace-children=yes",
                f"--callgrind-out-file={folder}/callgrind.%p"]  # fmt: skip
    return replace(command, argv=[*valgrind, *command.argv])


@dataclass(frozen=True, slots=True)
class Window:
    """What was counted in how much time."""

    instructions: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.instructions / self.seconds

    def without(self, idle_per_s: float) -> float:
        return self.instructions - idle_per_s * self.seconds


class _Counter:
    """Of a process and its children."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._pids = [stat.pid for stat in procs.tree(pid, procs.all_stats())]
        self._folder = folder
        self._control("--instr=on")

    def during(self, work: Callable[[], None]) -> Window:
        self._control("--zero")
        begun_at = time.monotonic()
        work()
        seconds = time.monotonic() - begun_at
        before = set(self._dumps())
        self._control("--dump")
        found = [_TOTAL.search(path.read_bytes()) for path in self._dumps() if path not in before]
        if not found or None in found:
            raise NotCounted("callgrind wrote no count")
        return Window(sum(int(match[1]) for match in found if match is not None), seconds)

    def _dumps(self) -> Iterator[Path]:
        return self._folder.glob("callgrind.*.*")

    def _control(self, what: str) -> None:
        for pid in self._pids:
            done = subprocess.run(["callgrind_control", what, str(pid)], capture_output=True, check=False)
            if done.returncode:
                raise NotCounted(done.stderr.decode("utf-8", "replace")[-300:])


class _Asker:
    """One connection, one request after the other, every prompt unique."""

    def __init__(self, port: int, participant: Participant) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._model = participant.model
        self._headers: Mapping[str, str] = {"content-type": "application/json", **participant.headers}
        self._number = 0

    def close(self) -> None:
        self._connection.close()

    def plain(self, num_requests: int) -> None:
        for _ in range(num_requests):
            self._ask(stream=False)

    def streams(self, num_streams: int) -> None:
        for _ in range(num_streams):
            body = self._ask(stream=True)
            if body.count(b'"content":"') < NUM_TOKENS or b"[DONE]" not in body:
                raise NotCounted("a stream was not whole")

    def _ask(self, *, stream: bool) -> bytes:
        self._number += 1
        message = {"role": "user", "content": f"{self._number} is the number of this prompt"}
        body = {"model": self._model, "messages": [message], "max_tokens": NUM_TOKENS, "stream": stream}
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body), dict(self._headers))
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise NotCounted(f"status {response.status}: {answer[:200]!r}")
        return answer
