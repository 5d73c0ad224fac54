"""A server that answers exactly as a test scripts it, down to the byte and the way of closing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from llm_runtime.engines.upstream import Address

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Peer:
    """The server's end of one connection. number: 0 for the first of the stub."""

    def __init__(self, stub: Stub, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.number = number
        self._stub = stub
        self._reader = reader
        self._writer = writer

    async def request(self) -> bytes | None:
        """The next whole request, None when the client has closed the connection."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        request = head + await self._reader.readexactly(length)
        self._stub.requests.append(request)
        return request

    async def send(self, *parts: bytes) -> None:
        """Each part in a write of its own, which the client also reads on its own."""
        for part in parts:
            self._writer.write(part)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
            await asyncio.sleep(0)

    async def closed(self) -> None:
        """Until the client has closed the connection, whatever it sent before."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65536):
                pass

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


class Stub:
    """Owned by `stub`, which ends its tasks. requests: every request received, in order."""

    def __init__(self, script: Script) -> None:
        self.requests: list[bytes] = []
        self.num_connections = 0
        self.num_open = 0
        self.address = Address()
        self.server: asyncio.Server | None = None
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(self, self.num_connections, reader, writer)
        self.num_connections += 1
        self.num_open += 1
        try:
            await self._script(peer)
        finally:
            self.num_open -= 1
            writer.close()

    async def stop_listening(self) -> None:
        """Refuses new connections and drops those it has; the port is free afterwards."""
        assert self.server is not None
        self.server.close()
        await self.end()
        await self.server.wait_closed()

    async def listen_again(self, port: int) -> None:
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", port)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        failed = [error for error in results if isinstance(error, Exception)]
        if failed:
            raise ExceptionGroup("the stub's script failed", failed)


@contextlib.asynccontextmanager
async def stub(script: Script, unix_path: Path | None = None) -> AsyncIterator[Stub]:
    """A listening stub; without unix_path on a port of 127.0.0.1."""
    it = Stub(script)
    if unix_path is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unix_path)
        it.server = await asyncio.start_unix_server(it.accept, str(unix_path))
        it.address = Address(unix_path=str(unix_path))
    else:
        it.server = server = await asyncio.start_server(it.accept, "127.0.0.1", 0)
        it.address = Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    try:
        yield it
    finally:
        it.server.close()
        await it.end()
        await it.server.wait_closed()


async def turns_until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn, at most about ten seconds, until something on it has come true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 10
    for _ in iter(lambda: condition() or loop.time() > deadline, True):
        await asyncio.sleep(0)
    assert condition()


async def answer_all(peer: Peer) -> None:
    """An ordinary server: keep-alive, one small answer per request."""
    while await peer.request():
        await peer.send(OK)
