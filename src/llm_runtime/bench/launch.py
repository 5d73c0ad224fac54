"""A server of the harness's own for the length of some runs: started from a command line, then ended."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.config import Target
from llm_runtime.core.errors import BackendError, BackendUnavailable, ConfigError

START_TIMEOUT_S = 900.0  # vLLM on a CPU takes minutes
STOP_GRACE_S = 15.0
LOOK_EVERY_S = 0.2
TAIL_BYTES = 2000

STAND_BACK = """import os, sys
if hasattr(os, "SCHED_IDLE"):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
else:
    os.nice(19)
os.execvp(sys.argv[1], sys.argv[1:])"""
"""An engine that wants all cores lets a client wait for the end of its time slice, which is late by several
milliseconds; Linux does so even for one that is nice, but not for one of its idle class."""


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def filled(template: str, values: Mapping[str, object]) -> list[str]:
    """The words of a command line with `{name}` replaced. Raises ConfigError for an unknown name."""
    try:
        return [word.format(**values) for word in shlex.split(template)]
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(f"the server's command line {template!r} cannot be filled in: {error!r}") from error


def program(word: str) -> str:
    """`llm-runtime` is the one beside this interpreter, whatever the PATH says: that one is measured."""
    beside = Path(sys.executable).with_name("llm-runtime")
    return str(beside) if word == "llm-runtime" and beside.exists() else word


class LaunchedUrl(str):
    """The URL of a server, and the process that it is."""

    __slots__ = ("pid",)
    pid: int


@asynccontextmanager
async def launched(
    template: str, values: Mapping[str, object], ready: str = "/v1/models", *, stands_back: bool = False
) -> AsyncIterator[LaunchedUrl]:
    """The URL of a server that answers `ready` with 200; `{port}` of the template is a free port of
    loopback. stands_back: gives way to whoever loads it, see STAND_BACK.

    Raises BackendError with the end of its output when it ends or does not get ready in time. At
    the end of the block it and all it started in its process group are gone.
    """
    port = free_port()
    first, *rest = filled(template, {**values, "port": port})
    words = [program(first), *rest]
    command = [sys.executable, "-c", STAND_BACK, *words] if stands_back else words
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"{words[0]} cannot be started: {error.strerror}") from error
        try:
            try:
                await _ready(process, url, ready)
            except (BackendError, TimeoutError) as error:
                output.seek(max(0, os.fstat(output.fileno()).st_size - TAIL_BYTES))
                said = output.read().decode("utf-8", "replace").strip()
                raise BackendError(f"{Path(words[0]).name} did not get ready: {error}\n{said}") from error
            server = LaunchedUrl(url)
            server.pid = process.pid
            yield server
        finally:
            await _end(process)


async def _ready(process: asyncio.subprocess.Process, url: str, path: str) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            if process.returncode is not None:
                raise BackendError(f"it ended with {process.returncode}")
            with suppress(BackendUnavailable):
                async with LoadClient(Target(url)) as client:
                    if await client.fetch(path) is not None:
                        return
            await asyncio.sleep(LOOK_EVERY_S)  # servers have no event to wait for


async def _end(process: asyncio.subprocess.Process) -> None:
    for number, patience_s in ((signal.SIGTERM, STOP_GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), patience_s)
            if number == signal.SIGTERM:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it left behind
            return
