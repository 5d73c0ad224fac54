"""The stub in the test's own loop, telling what its connections live through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from benchmarks.overhead.stub_upstream import Connection, Stub


class Watched:
    """Counts of what happened to its connections, and a way to wait for them."""

    def __init__(self) -> None:
        self.stub = Stub()
        self.port = 0
        self.num_paused = 0
        self.num_lost = 0
        self.changed = asyncio.Event()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not reached():
                self.changed.clear()
                await self.changed.wait()


class _Connection(Connection):
    def __init__(self, watched: Watched) -> None:
        super().__init__(watched.stub)
        self._watched = watched

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watched.num_paused += 1
        self._watched.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watched.num_lost += 1
        self._watched.changed.set()


@asynccontextmanager
async def serving(protocol: Callable[[], asyncio.BaseProtocol]) -> AsyncIterator[int]:
    """On loopback until the block is left; gives the port."""
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def stubbed(gap_s: float = 0.005, pace: str = "own") -> AsyncIterator[Watched]:
    watched = Watched()
    watched.stub.gap_s, watched.stub.pace = gap_s, pace
    async with serving(lambda: _Connection(watched)) as watched.port:
        yield watched
