"""A client as thin as the wire: it sends what it is told, byte by byte if need be, reads as slowly as it
likes, and leaves in any way a client can leave."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PATIENCE_S = 10.0


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object; asserts that it is one, whole, and declared as JSON."""
        assert self.headers["content-type"] == "application/json"
        assert self.headers["x-request-id"]
        body = self.json()
        assert set(body) == {"error"}
        error: dict[str, Any] = body["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert isinstance(error["type"], str)
        assert error["message"]
        return error


@dataclass
class Stream:
    """A streamed reply, taken apart as a client would."""

    events: list[Any] = field(default_factory=list)
    num_comments: int = 0
    done: bool = False

    @property
    def text(self) -> str:
        deltas = [event["choices"][0].get("delta", {}) for event in self.chunks if event["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)

    @property
    def chunks(self) -> list[Any]:
        return [event for event in self.events if "choices" in event]

    @property
    def error(self) -> dict[str, Any] | None:
        """The error the stream ended with: the last event, and nothing after it."""
        errors = [event["error"] for event in self.events if "error" in event]
        if not errors:
            return None
        error: dict[str, Any] = errors[0]
        assert len(errors) == 1
        assert self.events[-1] == {"error": error}
        assert not self.done
        return error

    def take(self, raw: bytes) -> None:
        """One event, without its blank line."""
        for line in raw.decode().split("\n"):
            if line.startswith(":"):
                self.num_comments += 1
            elif line == "data: [DONE]":
                self.done = True
            elif line:
                assert not self.done, "something after the end"
                assert line.startswith("data: "), line
                self.events.append(orjson.loads(line[6:]))


def chat_body(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Say a few words."}], **fields}


def post(body: Any, path: str = CHAT, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole request. `body`: bytes as they are, else JSON."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    sent = {"host": "test", "content-type": "application/json", "content-length": str(len(raw))}
    return request_head("POST", path, {**sent, **(headers or {})}) + raw


def request_head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """An empty value leaves the header out."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One piece of a body in chunked coding; of nothing, the end."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection:
    """One TCP connection. Reads only when asked to, so that a reader can be slow."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = b""

    @classmethod
    async def open(cls, port: int, receive_buffer_bytes: int | None = None) -> Connection:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:  # also when the test gives up in the middle
            sock.close()
            raise
        return cls(sock)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    # ---- leaving

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        """RST instead of FIN: what a client sends that is killed, or that has unread data."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    # ---- reading

    async def read_some(self, limit: int = 65536) -> bytes:
        """What has come, at most so much; b"" at the end of the connection."""
        if self._buffer:
            data, self._buffer = self._buffer[:limit], self._buffer[limit:]
            return data
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.get_running_loop().sock_recv(self._socket, limit)

    async def until(self, mark: bytes) -> bytes:
        """Everything up to and with `mark`. Raises EOFError where the connection ends before."""
        found = self._buffer.find(mark)
        while found < 0:
            async with asyncio.timeout(PATIENCE_S):
                data = await asyncio.get_running_loop().sock_recv(self._socket, 65536)
            if not data:
                raise EOFError(self._buffer)
            seen = max(0, len(self._buffer) - len(mark))
            self._buffer += data
            found = self._buffer.find(mark, seen)
        end = found + len(mark)
        data, self._buffer = self._buffer[:end], self._buffer[end:]
        return data

    async def exactly(self, num_bytes: int) -> bytes:
        while len(self._buffer) < num_bytes:
            async with asyncio.timeout(PATIENCE_S):
                data = await asyncio.get_running_loop().sock_recv(self._socket, 65536)
            if not data:
                raise EOFError(self._buffer)
            self._buffer += data
        data, self._buffer = self._buffer[:num_bytes], self._buffer[num_bytes:]
        return data

    async def at_end(self) -> bool:
        """Whether the server has closed its side, with nothing more to read."""
        try:
            return not self._buffer and await self.read_some() == b""
        except ConnectionError:
            return True

    async def head(self) -> Reply:
        """Status and headers; the body is left unread."""
        lines = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:-2]:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return Reply(int(lines[0].split(" ")[1]), headers)

    async def chunk(self) -> bytes:
        """The next piece of a body in chunked coding; b"" at its end."""
        size = int((await self.until(b"\r\n"))[:-2], 16)
        return (await self.exactly(size + 2))[:-2]

    async def reply(self, *, has_body: bool = True) -> Reply:
        """A whole reply, by its length or in chunks. has_body: not so for HEAD."""
        reply = await self.head()
        if not has_body:
            return reply
        if "content-length" in reply.headers:
            body = await self.exactly(int(reply.headers["content-length"]))
        else:
            assert reply.headers["transfer-encoding"] == "chunked"
            body = b""
            while piece := await self.chunk():
                body += piece
        return Reply(reply.status, reply.headers, body)

    async def events(self, stream: Stream) -> AsyncIterator[Stream]:
        """Reads a streamed body to its end, giving `stream` after every event."""
        tail = b""
        while piece := await self.chunk():
            *events, tail = (tail + piece).split(b"\n\n")
            for event in events:
                stream.take(event)
                yield stream
        assert not tail, "half an event"

    async def event(self, stream: Stream) -> None:
        """One piece of a streamed body, which is a whole number of events."""
        piece = await self.chunk()
        assert piece.endswith(b"\n\n")
        for event in piece.removesuffix(b"\n\n").split(b"\n\n"):
            stream.take(event)

    async def streamed(self) -> tuple[Reply, Stream]:
        """A whole streamed reply."""
        head, stream = await self.head(), Stream()
        assert head.headers["content-type"].startswith("text/event-stream"), head
        async for _ in self.events(stream):
            pass
        return head, stream


@asynccontextmanager
async def connected(port: int, receive_buffer_bytes: int | None = None) -> AsyncIterator[Connection]:
    connection = await Connection.open(port, receive_buffer_bytes)
    try:
        yield connection
    finally:
        connection.close()


async def ask(port: int, request: bytes) -> Reply:
    """One request on a connection of its own."""
    async with connected(port) as connection:
        await connection.send(request)
        return await connection.reply()


async def get(port: int, path: str, headers: Mapping[str, str] | None = None) -> Reply:
    return await ask(port, request_head("GET", path, {"host": "test", **(headers or {})}))
