"""Debian's nginx with the committed configuration, before a server: nothing is held back or sent twice."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.deploy.places import DEPLOY
from tests.e2e.conftest import free_port
from tests.support.http import Stream, ask, chat_body, connected, get, post
from tests.support.scripted import MODEL, ScriptedBackend
from tests.support.server import serve

pytestmark = [
    pytest.mark.nginx,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed (apt: nginx)"),
]

CONFIGURATION = DEPLOY / "nginx" / "llm-runtime.conf"
START_LIMIT_S = 20.0


@asynccontextmanager
async def nginx(folder: Path, server_port: int) -> AsyncIterator[int]:
    """Gives its port. Everything it writes is in `folder`."""
    port = free_port()
    text = CONFIGURATION.read_text()
    for old, new in (
        ("127.0.0.1:8000", f"127.0.0.1:{server_port}"),
        ("listen 8080", f"listen 127.0.0.1:{port}"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "site.conf").write_text(text)
    places = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )  # fmt: skip
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\n"
        + ("user root;\n" if os.getuid() == 0 else "")
        + f"events {{}}\nhttp {{\naccess_log off;\ngzip on;\ngzip_types *;\n{places}include site.conf;\n}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "nginx", "-p", str(folder), "-c", str(main), "-e", "stderr", stderr=log
        )
    try:
        async with asyncio.timeout(START_LIMIT_S):
            while not await _listens(port):
                assert process.returncode is None, (folder / "log").read_text()
                await asyncio.sleep(0.02)
        yield port
    finally:
        process.kill()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        async with connected(port):
            return True
    except OSError:
        return False


@asynccontextmanager
async def stack(folder: Path, backend: ScriptedBackend) -> AsyncIterator[int]:
    async with serve(backend=backend) as server, nginx(folder, server.port) as port:
        yield port


async def test_each_token_comes_when_it_is_made(tmp_path: Path) -> None:
    backend = ScriptedBackend()
    async with stack(tmp_path, backend) as port, connected(port) as client:
        await client.send(post(chat_body(MODEL, stream=True), headers={"accept-encoding": "gzip"}))
        engine = await backend.got(0)
        stream = Stream()
        for number in range(5):
            engine.say(f"token {number} ")
            if number == 0:
                head = await client.head()
                assert head.headers["content-type"].startswith("text/event-stream")
                assert "content-encoding" not in head.headers
            # The next token is not made before this one has come through.
            await client.event(stream)
        assert stream.text == "token 0 token 1 token 2 token 3 token 4 "
        engine.end()


async def test_a_client_that_leaves_frees_the_slot(tmp_path: Path) -> None:
    backend = ScriptedBackend()
    async with stack(tmp_path, backend) as port:
        async with connected(port) as client:
            await client.send(post(chat_body(MODEL, stream=True)))
            engine = await backend.got(0)
            engine.say("a")
            await client.head()
        await backend.cancelled(engine)


async def test_a_large_body_goes_through(tmp_path: Path) -> None:
    backend = ScriptedBackend(on_open=lambda stream: stream.end())
    async with stack(tmp_path, backend) as port:
        body = chat_body(MODEL)
        body["messages"][0]["content"] = "x" * 3_000_000
        reply = await ask(port, post(body))
        assert reply.status != 413
        assert "nginx" not in reply.body.decode()


async def test_a_server_that_dies_is_not_asked_again(tmp_path: Path) -> None:
    backend = ScriptedBackend()
    async with serve(backend=backend) as server, nginx(tmp_path, server.port) as port:
        async with connected(port) as client:
            await client.send(post(chat_body(MODEL)))
            engine = await backend.got(0)
            for connection in list(server.server.server_state.connections):
                connection.transport.abort()
            assert (await client.reply()).status == 502
        await backend.cancelled(engine)
        assert len(backend.streams) == 1


async def test_metrics_are_for_this_machine(tmp_path: Path) -> None:
    async with stack(tmp_path, ScriptedBackend()) as port:
        assert (await get(port, "/metrics")).status == 200
    assert "deny all" in CONFIGURATION.read_text()
