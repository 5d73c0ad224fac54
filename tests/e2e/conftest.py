"""The product as people run it: `llm-runtime serve` in a process of its own, the real engine below it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

MODEL = "smollm2-135m"
START_LIMIT_S = 60.0


@dataclass
class Server:
    """A running server. `log`: the file its output goes to."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def engine_pids(self) -> list[int]:
        """The engine programs below this server, not their guards."""
        return [pid for pid in descendants(self.process.pid) if b"llama_cpp.host" in own_module(pid)]

    def guard_pids(self) -> list[int]:
        return [pid for pid in descendants(self.process.pid) if b"engines.guard" in own_module(pid)]

    def wait_ready(self, limit_s: float = START_LIMIT_S) -> None:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if httpx2.get(f"{self.url}/health/ready").status_code == 200:
                    return
            except httpx2.HTTPError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"not ready within {limit_s} s:\n{self.log.read_text()}")


def own_module(pid: int) -> bytes:
    """What a process runs as its main module; b"" if it is gone. The engine's name also stands in its
    guard's arguments, after `--`, so only what comes before counts."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return b""
    return arguments[arguments.index(b"-m") + 1] if b"-m" in arguments else b""


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop()
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            continue
        found += map(int, children)
        queue += map(int, children)
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_gone(pids: list[int], limit_s: float = 10.0) -> list[int]:
    """Those still running at the end of the limit."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end and any(map(is_running, pids)):
        time.sleep(0.02)
    return [pid for pid in pids if is_running(pid)]


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    folder: Path, *arguments: str, command: tuple[str, ...] = ("serve",), **env: str
) -> Iterator[Server]:
    """Runs the command line until the block is left; whatever it left is killed then."""
    port = free_port()
    log = folder / "server.log"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LLM_RUNTIME_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("llm-runtime")), "serve", "--port", str(port), *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**clean, **env},
        )
        server = Server(process, f"http://127.0.0.1:{port}", log)
        try:
            yield server
        finally:
            left = descendants(process.pid)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            for pid in left:
                if is_running(pid):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, LLM_RUNTIME_N_THREADS="1") as running:
        running.wait_ready()
        yield running
