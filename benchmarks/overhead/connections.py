"""Connections of the load, each carrying one call at a time, and the pool that keeps them.

Not the package's own client: that one is built on the code under test, and every microsecond spent
here is taken from the core that the stub runs on.
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import httptools

from benchmarks.overhead.calls import Call


class Connection(asyncio.Protocol):
    """Owned by the pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._call: Call | None = None
        self._num_answers = 0
        self._keep_alive = True

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, call: Call) -> None:
        assert self._transport is not None
        self._call = call
        call.sent()
        self._transport.write(call.payload)

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        call = self._call
        if call is None:
            self.abort()
            return
        call.has_bytes = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
            call.end(None, "not HTTP")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.gone(self)
        call, self._call = self._call, None
        if call is None or call.ended:
            return
        if self._num_answers and not call.has_bytes and not call.retried:
            call.retried = True  # an idle connection that was closed just then
            call.tally.num_retries += 1
            self._pool.send(call)
        else:
            call.end(None, "connection lost")

    def on_headers_complete(self) -> None:
        if self._call is not None:
            self._call.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._call is not None:
            self._call.feed(body)

    def on_message_complete(self) -> None:
        call, self._call = self._call, None
        self._num_answers += 1
        self._keep_alive = self._parser.should_keep_alive()
        if call is None:
            return
        problem = call.verdict()
        if self._keep_alive:
            # Outside the parser: the next request's answer must not meet a parser still at work.
            asyncio.get_running_loop().call_soon(call.end, self, problem)
        else:
            self.abort()
            call.end(None, problem)


class Pool:
    """Connections to one server; the youngest idle one is used first. Owned by one phase."""

    def __init__(self, host: str, port: int) -> None:
        self.num_connects = 0
        self._where = (host, port)
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    async def fill(self, count: int) -> None:
        """Opens so many. Raises OSError when the server does not accept them."""
        for connection in await asyncio.gather(*(self.connect() for _ in range(count))):
            self.release(connection)

    async def connect(self, receive_buffer_bytes: int | None = None) -> Connection:
        """receive_buffer_bytes: of the kernel, for a client that is to take little."""
        self.num_connects += 1
        loop = asyncio.get_running_loop()
        plug = socket.socket()
        plug.setblocking(False)
        if receive_buffer_bytes is not None:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            await loop.sock_connect(plug, self._where)
        except BaseException:
            plug.close()
            raise
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _, connection = await loop.create_connection(lambda: Connection(self), sock=plug)
        self._open.add(connection)
        return connection

    def send(self, call: Call) -> None:
        """Now, or as soon as a new connection stands."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                connection.send(call)
                return
        task = asyncio.create_task(self._connect_and_send(call))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def release(self, connection: Connection) -> None:
        if connection.usable:
            self._idle.append(connection)

    def gone(self, connection: Connection) -> None:
        self._open.discard(connection)

    async def aclose(self) -> None:
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in tuple(self._open):
            connection.abort()
        await asyncio.sleep(0)

    async def _connect_and_send(self, call: Call) -> None:
        try:
            connection = await self.connect()
        except OSError:
            call.end(None, "not accepted")
            return
        connection.send(call)
