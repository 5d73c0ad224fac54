"""A relay that does nothing but relay: the floor of what a gateway in Python can cost on a machine.

Protocol to protocol on uvloop and httptools, without ASGI, keys, limits, queue, metrics or logs, and
without care for clients that leave: not a gateway, only what one has to be compared with. A request is
parsed and passed on as it came, with the answer's bytes written to the client as they were read.

    UPSTREAM_URL=http://127.0.0.1:9000 python benchmarks/overhead/bare_relay.py PORT
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import cast
from urllib.parse import urlsplit

import httptools
import uvloop

HOST = "127.0.0.1"


class Engine(asyncio.Protocol):
    """One connection to the upstream, for one request at a time."""

    def __init__(self, idle: list[Engine]) -> None:
        self._idle = idle
        self.client: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes, client: asyncio.Transport) -> None:
        self.client = client
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        client = self.client
        self._parser.feed_data(data)
        if client is not None:
            client.write(data)

    def on_message_complete(self) -> None:
        self._idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        elif self.client is not None:
            self.client.close()


class Client(asyncio.Protocol):
    def __init__(self, address: tuple[str, int], idle: list[Engine]) -> None:
        self._address, self._idle = address, idle
        self._parser = httptools.HttpRequestParser(self)
        self._request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._request += data
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        request, self._request = self._request, b""
        if self._idle:
            self._idle.pop().ask(request, self.transport)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(request))

    async def _connect(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, engine = await loop.create_connection(lambda: Engine(self._idle), *self._address)
        engine.ask(request, self.transport)


async def serve(port: int) -> None:
    parts = urlsplit(os.environ["UPSTREAM_URL"])
    assert parts.hostname is not None
    assert parts.port is not None
    address, idle = (parts.hostname, parts.port), list[Engine]()
    server = await asyncio.get_running_loop().create_server(lambda: Client(address, idle), HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
