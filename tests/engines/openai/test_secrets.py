"""F58: whatever goes wrong upstream, no secret, prompt or answer is in what the server writes or says."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.engines.openai.upstreams import fake_upstream, reply, sing
from tests.engines.upstream.stubs import Peer
from tests.support.http import ask, chat_body, get, post

UPSTREAM, CLIENT, PASSWORD = "sk-UPSTREAMSECRET", "sk-CLIENTSECRET", "PASS-word-SECRET"
HEADER, PROMPT = "header-value-SECRET", "PROMPT-MARKER"
SECRETS = (UPSTREAM, CLIENT, HEADER, PROMPT, "sk-WRONGSECRET")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serving(log: IO[bytes], **variables: str) -> AsyncIterator[tuple[int, Process]]:
    """The server in a process of its own, and its port."""
    port = free_port()
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LLM_RUNTIME_")},
        "LLM_RUNTIME_BACKEND": "openai",
        "LLM_RUNTIME_PORT": str(port),
        "LLM_RUNTIME_LOG_LEVEL": "debug",
        "LLM_RUNTIME_LOG_FORMAT": "json",
        "LLM_RUNTIME_API_KEYS": CLIENT,
        "LLM_RUNTIME_TELEMETRY__GPU_POLL_INTERVAL_S": "0",
        "LLM_RUNTIME_ENGINES__OPENAI__HEADERS": f"x-key: {HEADER}",
        **{f"LLM_RUNTIME_{name}": value for name, value in variables.items()},
    }
    command = [str(Path(sys.executable).with_name("llm-runtime")), "serve"]
    process = await asyncio.create_subprocess_exec(
        *command, env=environ, stdout=log, stderr=asyncio.subprocess.STDOUT
    )
    try:
        yield port, process
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(20):
            await process.wait()


def command_line(pid: int) -> bytes:
    """As anybody on the machine can see it."""
    return subprocess.check_output(["ps", "-o", "args=", "-p", str(pid)])


async def until_ready(port: int, process: Process) -> None:
    """Another process has no event to wait for but its end."""
    async with asyncio.timeout(60):
        while process.returncode is None:
            try:
                if (await get(port, "/health/ready")).status == 200:
                    return
            except (ConnectionError, EOFError):
                pass
            await asyncio.sleep(0.05)
    raise AssertionError(f"the server ended with {process.returncode}")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[bytes]]:
    with (tmp_path / "log").open("w+b") as file:
        yield file


@pytest.mark.parametrize("with_user", [False, True])
async def test_f58_no_secret_anywhere(log: IO[bytes], with_user: bool) -> None:
    trouble = [
        reply({"error": {"message": f"Incorrect API key {UPSTREAM}, {HEADER}"}}, "401 Unauthorized"),
        reply({"error": {"message": f"cannot handle {UPSTREAM} {PASSWORD}"}}, "500 Internal Server Error"),
        reply(f"<html>{UPSTREAM} {PASSWORD}</html>".encode(), "502 Bad Gateway", "text/html"),
        b"HTTP/1.1 nonsense\r\n\r\n",
    ]

    async def answer(peer: Peer, request: bytes) -> None:
        await (peer.send(trouble.pop()) if trouble else sing(peer, request))

    said: list[bytes] = []
    async with fake_upstream(answer) as fake:
        url, key = fake.url, {"UPSTREAM_API_KEY": UPSTREAM}
        if with_user:
            url, key = fake.url.replace("http://", f"http://user:{PASSWORD}@"), {}
        async with serving(log, UPSTREAM_URL=url, **key) as (port, process):
            await until_ready(port, process)
            cmdline = command_line(process.pid)
            body = chat_body("m", user=PROMPT)
            body["messages"][0]["content"] = PROMPT
            good = {"authorization": f"Bearer {CLIENT}"}
            statuses = []
            for _ in range(len(trouble) + 1):
                got = await ask(port, post(body, headers=good))
                statuses.append(got.status)
                said.append(repr(got).encode())
            assert statuses == [502, 502, 502, 401, 200]
            wrong = await ask(port, post(body, headers={"authorization": "Bearer sk-WRONGSECRET"}))
            assert wrong.status == 401
            said.append(repr(wrong).encode())
            await fake.server.stop_listening()
            said.append(repr(await ask(port, post(body, headers=good))).encode())
            for path in ("/metrics", "/metrics?format=prometheus", "/load", "/health", "/v1/models"):
                said.append(repr(await get(port, path, good)).encode())
    log.seek(0)
    written = log.read()
    assert b"upstream.refused" in written, "the log tells what happened"
    for secret in (*SECRETS, PASSWORD) if with_user else SECRETS:
        for text in (written, cmdline, *said):
            assert secret.encode() not in text
