"""A real redis-server on a Unix socket of its own, with nothing kept on disk; it can be killed and paused."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

PROGRAM = shutil.which("redis-server")
START_LIMIT_S = 20.0

needs_redis = [
    pytest.mark.redis,
    pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed (apt: redis-server)"),
]


class RedisServer:
    """Owned by one test. Each `start` begins with empty data."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "redis.sock"
        self._folder = folder
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    async def start(self) -> None:
        assert PROGRAM is not None
        arguments = ("--port", "0", "--unixsocket", str(self._socket), "--save", "", "--appendonly", "no")
        self._process = await asyncio.create_subprocess_exec(
            PROGRAM, *arguments, "--dir", str(self._folder), stdin=DEVNULL, stdout=PIPE
        )
        assert self._process.stdout is not None
        said = b""
        async with asyncio.timeout(START_LIMIT_S):
            while b"ready to accept connections" not in (line := await self._process.stdout.readline()):
                assert line, said.decode()
                said += line

    def pause(self) -> None:
        """It keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        assert self._process is not None
        await self._process.communicate()
        self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def stop(self) -> None:
        """Whatever state it is in."""
        if self._process is not None:
            await self.kill()


@asynccontextmanager
async def redis_server() -> AsyncIterator[RedisServer]:
    # Paths of Unix sockets are short; pytest's folders are not.
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        server = RedisServer(Path(folder))
        await server.start()
        try:
            yield server
        finally:
            await server.stop()
