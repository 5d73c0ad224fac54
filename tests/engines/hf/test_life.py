"""How runs are cancelled, and what a start says that cannot work. No model library is needed."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from llm_runtime.core.clock import SystemClock
from llm_runtime.core.errors import ConfigError
from llm_runtime.core.lease import Lease, LeaseState
from llm_runtime.engines.base import BackendState
from llm_runtime.engines.config import HfConfig
from llm_runtime.engines.hf.backend import find_python
from llm_runtime.engines.hf.host import REQUIRED, arguments
from llm_runtime.engines.hf.life import RunCancels
from llm_runtime.engines.upstream import Address, Upstream
from llm_runtime.engines.upstream.exchange import Exchange
from tests.engines.hf.conftest import make_backend
from tests.engines.hf.serving import CHAT, MESSAGES, PATIENCE_S, Running

WITHOUT_PACKAGES = """#!/bin/sh
exec {python} -S "$@"
"""


class Freed:
    """Leases, in the order in which they were freed."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.event = asyncio.Event()

    def lease(self, name: str) -> Lease:
        return Lease(name, "replica", 1, 0.0, self._free)

    def _free(self, lease: Lease) -> None:
        self.ids.append(lease.request_id)
        self.event.set()


@asynccontextmanager
async def cancelling(upstream: Upstream) -> AsyncIterator[RunCancels]:
    cancels = RunCancels(upstream, SystemClock())
    task = asyncio.create_task(cancels.run())
    try:
        yield cancels
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def send(upstream: Upstream, run: int) -> Exchange:
    body = orjson.dumps({"model": "m", "messages": MESSAGES, "stream": True})
    return upstream.request("POST", f"{CHAT}?run={run}", body)


# Cancelling


async def test_a_lease_is_free_when_the_program_is_done_with_the_run(running: Running) -> None:
    running.model.held = True
    freed = Freed()
    async with Upstream(Address(unix_path=running.path)) as upstream, cancelling(upstream) as cancels:
        exchange = send(upstream, 1)
        await running.started()
        lease = freed.lease("a")
        cancels.cancel(1, exchange, lease)
        assert lease.state is LeaseState.CANCELLING
        assert exchange.ended
        async with asyncio.timeout(PATIENCE_S):
            await freed.event.wait()
        assert running.model.num_running == 0


async def test_a_request_that_was_never_sent_is_free_at_once(running: Running) -> None:
    freed = Freed()
    async with Upstream(Address(unix_path=running.path)) as upstream, cancelling(upstream) as cancels:
        exchange = send(upstream, 1)
        cancels.cancel(1, exchange, freed.lease("a"))
        assert freed.ids == ["a"]
    assert running.model.seen == []


async def test_the_wish_is_repeated_until_it_is_answered(running: Running, tmp_path: Path) -> None:
    """A program that does not answer has not confirmed anything."""
    freed = Freed()
    answers = [
        b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ]
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        assert freed.ids == []
        writer.write(answers.pop(0))
        writer.close()

    path = f"{running.path}2"
    running.model.held = True
    async with (
        await asyncio.start_unix_server(serve, path),
        Upstream(Address(unix_path=running.path)) as first,
        Upstream(Address(unix_path=path)) as other,
        cancelling(other) as cancels,
    ):
        exchange = send(first, 5)
        await running.started()
        cancels.cancel(5, exchange, freed.lease("a"))
        async with asyncio.timeout(PATIENCE_S):
            await freed.event.wait()
    assert asked == [b"DELETE /runs/5 HTTP/1.1"] * 3


async def test_a_program_that_is_gone_holds_nothing(running: Running) -> None:
    running.model.held = True
    freed = Freed()
    async with Upstream(Address(unix_path=running.path)) as upstream:
        cancels = RunCancels(upstream, SystemClock())  # nobody runs it
        exchange = send(upstream, 1)
        await running.started()
        cancels.cancel(1, exchange, freed.lease("a"))
        assert freed.ids == []
        cancels.engine_gone()
        cancels.engine_gone()
        assert freed.ids == ["a"]


# Starting


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def notes(state_dir: Path) -> list[Path]:
    """Of engines that run, or were not cleaned up."""
    return list(state_dir.glob("hf-*.json"))


async def start(folder: Path, tmp_path: Path, **changes: object) -> tuple[ConfigError, BackendState]:
    backend = make_backend(folder, tmp_path, **changes)
    with pytest.raises(ConfigError) as caught:
        await backend.start(lambda: None)
    state = backend.status.state
    await backend.aclose()
    assert notes(tmp_path) == [], "nothing of it runs"
    return caught.value, state


async def test_a_python_that_lacks_packages_is_told_which(folder: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(WITHOUT_PACKAGES.format(python=sys.executable))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    error, state = await start(folder, tmp_path, python=str(python))
    assert error.message.startswith(f"the Python of engines.hf.python lacks {', '.join(REQUIRED)}; install")
    assert f"pip install {' '.join(REQUIRED)}" in error.message
    assert str(tmp_path) not in error.message, "health answers show it"
    assert state is BackendState.FAILED, "the same start can only fail again"


async def test_a_python_that_is_no_program_is_told(folder: Path, tmp_path: Path) -> None:
    error, state = await start(folder, tmp_path, python="/nowhere/python")
    assert error.message.startswith("engines.hf.python = '/nowhere/python' is no program")
    assert state is BackendState.FAILED


def test_weights_have_to_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="models pull hf:org/model"):
        make_backend("org/model", tmp_path)


def test_the_python_is_found_by_name_on_the_path(tmp_path: Path) -> None:
    program = tmp_path / "python-with-torch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_python(HfConfig(python="python-with-torch"), {"PATH": str(tmp_path)}) == str(program)


def test_without_a_setting_some_python_is_tried() -> None:
    assert os.access(find_python(HfConfig(), {}), os.X_OK)


def test_the_arguments_of_the_program() -> None:
    options = arguments(["--model", "folder"])
    assert (options.port, options.host, options.socket) == (8001, "127.0.0.1", None)
    assert (options.dtype, options.device, options.threads) == ("auto", "auto", None)
    with pytest.raises(SystemExit):
        arguments(["--model", "folder", "--socket", "s", "--port", "1"])
