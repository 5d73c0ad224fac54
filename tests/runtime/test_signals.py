"""Signals and fatal failures of the real process, under both ways of starting it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import Connection, Reply, Stream, ask, chat_body, connected, get, post

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 30.0
EXIT_LIMIT_S = 15.0
BOTH = pytest.mark.parametrize("way", ["serve", "uvicorn"])


@dataclass
class Process:
    """The server in a process of its own."""

    process: asyncio.subprocess.Process
    port: int
    output: list[bytes] = field(default_factory=list)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exited(self) -> int:
        async with asyncio.timeout(EXIT_LIMIT_S):
            return await self.process.wait()

    async def logged(self, mark: str) -> None:
        """Until the process has said so."""
        async with asyncio.timeout(EXIT_LIMIT_S):
            while not any(mark.encode() in line for line in self.output):
                line = await self.lines.readline()
                assert line, b"".join(self.output).decode()
                self.output.append(line)

    @property
    def lines(self) -> asyncio.StreamReader:
        assert self.process.stdout is not None
        return self.process.stdout

    async def rest(self) -> str:
        self.output.append(await self.lines.read())
        return b"".join(self.output).decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def started(command: Sequence[str], port: int, **environ: str) -> AsyncIterator[Process]:
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "LLM_RUNTIME_BACKEND": "mock",
        "LLM_RUNTIME_LOG_FORMAT": "json",
        "LLM_RUNTIME_DECODE_LATENCY_MS": "20",
        **{f"LLM_RUNTIME_{name}": value for name, value in environ.items()},
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env=variables, cwd=ROOT,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    running = Process(process, port)
    try:
        await _ready(running)
        yield running
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ready(server: Process) -> None:
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        assert server.process.returncode is None, await server.rest()
        try:
            if (await get(server.port, "/health/ready")).status == 200:
                return
        except OSError:
            pass  # it does not listen yet
        await asyncio.sleep(0.02)
    raise AssertionError("not ready in time")


@asynccontextmanager
async def server(way: str, **environ: str) -> AsyncIterator[Process]:
    port = free_port()
    command = {
        "serve": ["-c", "from llm_runtime.cli import app; app()", "serve", "--port", str(port)],
        "uvicorn": ["-m", "uvicorn", "llm_runtime.main:app", "--port", str(port), "--log-level", "warning"],
    }[way]
    async with started(command, port, **environ) as running:
        yield running


def long_stream(num_tokens: int = 40) -> bytes:
    return post(chat_body("mock", stream=True, max_tokens=num_tokens, ignore_eos=True))


async def begin(connection: Connection, request: bytes) -> Stream:
    """Sends it and reads the first event."""
    await connection.send(request)
    assert (await connection.head()).status == 200
    stream = Stream()
    await connection.event(stream)
    return stream


async def finish(connection: Connection, stream: Stream) -> Stream:
    async for _ in connection.events(stream):
        pass
    return stream


async def waiting(port: int, num_requests: int) -> None:
    """Until so many requests wait in the queue."""
    await counted(port, "num_waiting", num_requests)


async def counted(port: int, what: str, num_requests: int) -> None:
    async with asyncio.timeout(EXIT_LIMIT_S):
        while (await get(port, "/load")).json()["pools"][0][what] < num_requests:
            pass


async def refused(port: int) -> Reply:
    """A new request, once the drain has begun."""
    async with asyncio.timeout(5):
        while (reply := await ask(port, post(chat_body("mock", max_tokens=1)))).status == 200:
            pass
    return reply


@pytest.mark.parametrize(("way", "number"), [("serve", signal.SIGTERM), ("uvicorn", signal.SIGINT)])
async def test_the_first_signal_drains(way: str, number: signal.Signals) -> None:
    async with (
        server(way) as running,
        connected(running.port) as connection,
        connected(running.port) as idle,
    ):
        await idle.send(post(chat_body("mock", max_tokens=1)))
        assert (await idle.reply()).status == 200  # and stays connected
        stream = await begin(connection, long_stream())
        running.signal(number)
        reply = await refused(running.port)
        assert (reply.status, reply.error["code"]) == (503, "draining")
        assert reply.headers["connection"] == "close"
        assert int(reply.headers["retry-after"]) >= 1
        ready = await get(running.port, "/health/ready")
        assert (ready.status, ready.json()["reason"]) == (503, "draining")
        assert (await get(running.port, "/health/live")).status == 200
        await finish(connection, stream)
        assert stream.done
        assert len(stream.chunks) == 42  # role, 40 tokens, finish: nothing was cut
        ended_at = time.monotonic()
        assert await running.exited() == 0
        assert time.monotonic() - ended_at < 3
        assert "Traceback" not in await running.rest()


@BOTH
async def test_the_drain_limit_ends_what_is_left_and_the_process_with_0(way: str) -> None:
    """A stream, a plain reply, and a reader that stands still and must not hold up the others' end."""
    async with (
        server(way, DRAIN_TIMEOUT_S="0.3", DECODE_LATENCY_MS="1", MAX_BATCH_SIZE="16") as running,
        connected(running.port) as connection,
        connected(running.port) as plain,
        connected(running.port, receive_buffer_bytes=4096) as slow,
    ):
        endless = {"max_tokens": 8000, "ignore_eos": True}
        async with connected(running.port) as first:  # the others wait for it, and so make one batch
            await first.send(post(chat_body("mock", **endless)))
            await counted(running.port, "num_running", 1)  # or a quick server puts it into their batch
            await slow.send(post(chat_body("mock", stream=True, n=8, **endless)))
            await plain.send(post(chat_body("mock", **endless)))
            await connection.send(post(chat_body("mock", stream=True, **endless)))
            await waiting(running.port, 3)
        assert (await connection.head()).status == 200
        stream = Stream()
        running.signal(signal.SIGTERM)
        began_at = time.monotonic()
        reply = await plain.reply()
        assert (reply.status, reply.error["code"]) == (503, "draining")
        await finish(connection, stream)
        assert stream.error is not None
        assert stream.error["code"] == "draining"
        assert not any(chunk["choices"][0]["finish_reason"] for chunk in stream.chunks)
        assert await running.exited() == 0
        assert time.monotonic() - began_at < 5


@BOTH
async def test_a_second_signal_ends_it_at_once(way: str) -> None:
    async with server(way) as running, connected(running.port) as connection:
        stream = await begin(connection, long_stream(5000))
        running.signal(signal.SIGTERM)
        await refused(running.port)
        began_at = time.monotonic()
        running.signal(signal.SIGTERM)
        await finish(connection, stream)
        assert stream.error is not None
        assert await running.exited() == 0
        assert time.monotonic() - began_at < 3
        assert "Traceback" not in await running.rest()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(("--workers", "2"), "one process owns the queue"), (("--host", "0.0.0.0"), "without API keys")],
)
async def test_uvicorn_is_told_what_we_refuse(arguments: Sequence[str], why: str) -> None:
    """What is given to uvicorn does not pass through our settings."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uvicorn", "llm_runtime.main:app", "--port", str(free_port()), *arguments,
        env={"PATH": os.environ["PATH"], "LLM_RUNTIME_BACKEND": "mock"}, cwd=ROOT,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(START_LIMIT_S):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert why in said.decode()


# ---- fatal failures


@asynccontextmanager
async def dying(way: str, *more: str) -> AsyncIterator[Process]:
    port = free_port()
    async with started(["-m", "tests.runtime.programs.dies", way, str(port), *more], port) as running:
        yield running


def scripted(**fields: Any) -> bytes:
    return post(chat_body("scripted", stream=True, **fields))


@BOTH
async def test_a_fatal_failure_ends_the_process_with_an_error(way: str) -> None:
    async with dying(way) as running, connected(running.port) as connection:
        stream = await begin(connection, scripted())
        async with connected(running.port) as deadly:
            began_at = time.monotonic()
            await deadly.send(scripted(user="die"))
            await finish(connection, stream)
            assert stream.error is not None
            assert (stream.error["code"], stream.error["type"]) == (
                "backend_unavailable", "service_unavailable_error",
            )  # fmt: skip
        assert await running.exited() == 70
        assert time.monotonic() - began_at < 5
        said = await running.rest()
        assert "runtime.fatal" in said
        assert "engine scripted-0 failed (RuntimeError)" in said


async def test_a_fatal_failure_ends_even_what_hangs() -> None:
    async with dying("serve", "hangs") as running, connected(running.port) as connection:
        began_at = time.monotonic()
        await connection.send(scripted(user="die"))
        assert await running.exited() == 70
        assert time.monotonic() - began_at < 5


async def test_a_second_signal_ends_even_what_hangs() -> None:
    async with dying("serve", "hangs") as running:
        running.signal(signal.SIGTERM)
        await running.logged("drain.end")
        running.signal(signal.SIGTERM)
        began_at = time.monotonic()
        assert await running.exited() == 128 + signal.SIGTERM
        assert time.monotonic() - began_at < 3
