"""Engines, guards and servers killed under load: nothing hangs, nothing is left, service comes back."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import httpx2
import pytest

from tests.e2e.conftest import MODEL, Server, is_running, serving, wait_gone

pytestmark = pytest.mark.engine

NUM_STREAMS = 8


class Stream(threading.Thread):
    """One streaming client; keeps what it saw. `lines`: the data lines, without the prefix."""

    def __init__(self, url: str, max_tokens: int = 1500) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._max_tokens = max_tokens
        self.status = 0
        self.lines: list[str] = []
        self.error: Exception | None = None
        self.body: bytes = b""

    def run(self) -> None:
        request = {
            "model": MODEL,
            "stream": True,
            "max_tokens": self._max_tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": f"Write a long story. Number {id(self)}."}],
        }
        try:
            with httpx2.stream(
                "POST", f"{self._url}/v1/chat/completions", json=request, timeout=60
            ) as response:
                self.status = response.status_code
                if response.status_code != 200:
                    self.body = response.read()
                    return
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        self.lines.append(line.removeprefix("data: "))
        except Exception as error:
            self.error = error

    @property
    def has_text(self) -> bool:
        return len(self.lines) > 2

    def ended_with_error(self) -> bool:
        if self.status != 200:
            return self.status in (502, 503) and "error" in json.loads(self.body)
        last = json.loads(self.lines[-1]) if self.lines and self.lines[-1] != "[DONE]" else {}
        finishes = [line for line in self.lines if '"finish_reason":"' in line]
        return "error" in last and not finishes and set(last["error"]) == {"message", "type", "param", "code"}


def start_streams(server: Server, number: int = NUM_STREAMS) -> list[Stream]:
    streams = [Stream(server.url) for _ in range(number)]
    for stream in streams:
        stream.start()
    end = time.monotonic() + 60
    while not all(stream.has_text for stream in streams):
        assert time.monotonic() < end, "the streams did not start"
        time.sleep(0.02)
    return streams


def ask(server: Server) -> httpx2.Response:
    request = {"model": MODEL, "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]}
    return httpx2.post(f"{server.url}/v1/chat/completions", json=request, timeout=60)


def test_f37_b_engine_killed_under_eight_streams(server: Server) -> None:
    streams = start_streams(server)
    (engine,) = server.engine_pids()
    os.kill(engine, signal.SIGKILL)
    for stream in streams:
        stream.join(5)
        assert not stream.is_alive(), "a client still waits for a dead engine"
        assert stream.error is None
        assert stream.ended_with_error(), stream.lines[-2:]
    server.wait_ready(10)
    assert ask(server).status_code == 200
    (restarted,) = server.engine_pids()
    assert restarted != engine
    metrics = httpx2.get(f"{server.url}/metrics").json()
    assert metrics["failed_count"] == NUM_STREAMS
    assert metrics["active_requests"] == 0
    load = httpx2.get(f"{server.url}/load").json()
    assert load["pools"][0]["num_free_slots"] == load["pools"][0]["num_slots"] == 8


def test_f37_a_server_killed_leaves_no_engine(server: Server) -> None:
    start_streams(server, 2)
    below = [*server.engine_pids(), *server.guard_pids()]
    assert len(below) == 2
    os.kill(server.process.pid, signal.SIGKILL)
    assert wait_gone(below) == []


def test_guard_killed_takes_the_engine_along_and_a_new_one_comes(server: Server) -> None:
    (stream,) = start_streams(server, 1)
    (engine,), (guard,) = server.engine_pids(), server.guard_pids()
    os.kill(guard, signal.SIGKILL)
    assert wait_gone([engine, guard], 5) == []
    stream.join(5)
    assert stream.ended_with_error()
    server.wait_ready(10)
    assert ask(server).status_code == 200


def test_f37_a_d_stop_ends_everything_and_start_again_works(tmp_path: Path) -> None:
    for _ in range(2):
        with serving(tmp_path) as server:
            server.wait_ready()
            below = [*server.engine_pids(), *server.guard_pids()]
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(20) == 0
            assert not any(map(is_running, below))


def test_what_is_left_when_server_and_guard_die_together_is_removed_by_the_next_start(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        first.wait_ready()
        (engine,), (guard,) = first.engine_pids(), first.guard_pids()
        os.kill(engine, signal.SIGSTOP)
        os.kill(guard, signal.SIGKILL)
        os.kill(first.process.pid, signal.SIGKILL)
        with serving(tmp_path) as second:
            second.wait_ready()
            assert wait_gone([engine, guard]) == []
            assert ask(second).status_code == 200
