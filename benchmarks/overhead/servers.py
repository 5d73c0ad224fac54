"""Programs under test and the stub: starting them on their core, waiting until they answer, stopping."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
LOG_TAIL_BYTES = 2000
ASK = {"messages": [{"role": "user", "content": "Are you there?"}], "max_tokens": 2}


class StartError(Exception):
    """A program did not come up; the text ends with its last lines."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Sets of cores; None leaves the choice to the kernel, as where there is only one."""

    participant: frozenset[int] | None
    load: frozenset[int] | None

    @classmethod
    def choose(cls, *, pinned: bool) -> Cores:
        """The first usable core for who is measured, the others for the load and the stub."""
        if not pinned or not hasattr(os, "sched_getaffinity"):
            return cls(None, None)
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            return cls(None, None)
        return cls(frozenset(usable[:1]), frozenset(usable[1:]))


@contextlib.contextmanager
def on_cores(cores: frozenset[int] | None) -> Iterator[None]:
    """Children started inside inherit these cores."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Command:
    """env: in addition to the few variables every program gets; no proxy or settings leak in."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


class Server:
    """A program of its own session, so that all of it can be found and ended. Blocking."""

    def __init__(self, command: Command, cores: frozenset[int] | None, log: Path) -> None:
        self._log = log
        env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        with log.open("wb") as file, on_cores(cores):
            self.process = subprocess.Popen(
                command.argv, env={**env, **command.env}, cwd=command.cwd, stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def tail(self) -> str:
        return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")

    def stop(self) -> None:
        """SIGTERM, then SIGKILL for the whole group."""
        if self.is_alive:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """Free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def request(port: int, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None,
            timeout_s: float = 10.0) -> tuple[int, bytes]:  # fmt: skip
    """Status and body. Raises OSError or HTTPException when there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method, path, payload, {"content-type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def wait_until_serving(server: Server, port: int, model: str, headers: Mapping[str, str]) -> float:
    """Seconds until a chat request was answered, streamed and plain. Raises StartError."""
    begun_at = time.monotonic()
    last = "nobody listens"
    while time.monotonic() - begun_at < START_TIMEOUT_S:
        if not server.is_alive:
            raise StartError(f"it ended with status {server.process.returncode}:\n{server.tail()}")
        try:
            last = _refusal(port, model, headers)
        except (OSError, http.client.HTTPException) as error:
            last = str(error)
        if not last:
            return time.monotonic() - begun_at
        time.sleep(0.1)
    raise StartError(f"no answer within {START_TIMEOUT_S:.0f} s ({last}):\n{server.tail()}")


def _refusal(port: int, model: str, headers: Mapping[str, str]) -> str:
    """Empty when both kinds of request are answered."""
    for stream in (False, True):
        status, body = request(port, "POST", "/v1/chat/completions",
                               {**ASK, "model": model, "stream": stream}, headers)  # fmt: skip
        if status != 200:
            return f"status {status}: {body[:300].decode('utf-8', 'replace')}"
        if stream and b"[DONE]" not in body:
            return "the stream has no end"
    return ""
