"""One request and its reply on a connection of ours: ASGI's `receive` and `send`, and shorter ways beside
them for endpoints that know whom they talk to (`cycle_of`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from llm_runtime.web.asgi import SERVER_SEND, ASGIApp, Message, Scope, Send
from llm_runtime.web.errors import Header

BODY_HIGH_WATER_BYTES = 64 * 1024
NO_BODY_STATUSES = (204, 304)

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_DISCONNECT = {"type": "http.disconnect"}
_NOT_IN_HEADERS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")

log = logging.getLogger("uvicorn.error")


class Wire(Protocol):
    """The connection, as the cycle at its head sees it."""

    transport: asyncio.Transport
    write_paused: bool

    @property
    def default_headers(self) -> list[Header]: ...

    async def drained(self) -> None:
        """Until the client has read enough of what was written, or is gone."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def answered(self) -> None:
        """The reply is complete."""
        ...

    def left(self, cycle: Cycle) -> None:
        """The application has returned."""
        ...


class Cycle:
    """Made by the connection, which feeds it; read and answered by the application's task.

    on_disconnect: called once from the loop when the client goes before its reply is complete; to be
    set by `watch`. `respond` and `write` never suspend; the rest is ASGI as any server speaks it.
    """

    __slots__ = (
        "_arrived", "_body", "_chunked", "_expects_continue", "_head", "_left_bytes", "_news", "_wire",
        "complete", "disconnected", "keep_alive", "more_body", "on_disconnect", "scope", "started",
    )  # fmt: skip

    def __init__(self, wire: Wire, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.more_body = True
        self.started = False
        self.complete = False
        self.disconnected = False
        self.on_disconnect: Callable[[], None] | None = None
        self._wire = wire
        self._expects_continue = expects_continue
        self._body: bytes | bytearray = b""
        self._arrived = False
        self._news: asyncio.Event | None = None
        self._head = b""  # waits for the first piece of the body
        self._chunked = False
        self._left_bytes: int | None = None  # of the announced length

    # ---- from the connection

    def body_arrived(self, data: bytes) -> None:
        if not self._body:
            self._body = data
        else:
            if self._body.__class__ is bytes:
                self._body = bytearray(self._body)
            self._body += data
        if len(self._body) > BODY_HIGH_WATER_BYTES:
            self._wire.pause_reading()
        self._tell()

    def body_ended(self) -> None:
        self.more_body = False
        self._tell()

    def lost(self) -> None:
        """The client is gone."""
        if not self.complete:
            self.disconnected = True
            if self.on_disconnect is not None:
                told, self.on_disconnect = self.on_disconnect, None
                told()
        self._tell()

    def _tell(self) -> None:
        self._arrived = True
        if self._news is not None:
            self._news.set()

    # ---- the application's task

    async def run(self, app: ASGIApp) -> None:
        """The application's call, and what is left to do when it ends wrongly. Raises nothing."""
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            log.error("Exception in ASGI application\n", exc_info=error)
            self._break_off()
        else:
            if not self.complete and not self.disconnected:
                log.error("ASGI callable returned without completing response.")
                self._break_off()
        finally:
            self._wire.left(self)

    def _break_off(self) -> None:
        if self.disconnected or self.complete:
            return
        if self.started and not self._head:
            self._wire.transport.close()
            return
        self._head = b""
        text = b"Internal Server Error"
        kind = (b"content-type", b"text/plain; charset=utf-8")
        self.respond(500, [kind, (b"content-length", b"%d" % len(text)), (b"connection", b"close")], text)

    # ---- ASGI

    async def receive(self) -> Message:
        if self._expects_continue and not self._wire.transport.is_closing():
            self._expects_continue = False
            self._wire.transport.write(_CONTINUE)
        while not self.disconnected and not self.complete and not self._arrived:
            self._wire.resume_reading()
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            await self._news.wait()
        if self.disconnected or self.complete:
            return dict(_DISCONNECT)
        self._arrived = False
        body, self._body = self._body, b""
        return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        if self._wire.write_paused and not self.disconnected:
            await self._wire.drained()
        if self.disconnected:
            return
        kind = message["type"]
        if not self.started:
            if kind != "http.response.start":
                raise RuntimeError(f"Expected ASGI message 'http.response.start', but got '{kind}'.")
            self._start(message["status"], message.get("headers", ()))
        elif self.complete:
            raise RuntimeError(f"Unexpected ASGI message '{kind}' sent, after response already completed.")
        elif kind != "http.response.body":
            raise RuntimeError(f"Expected ASGI message 'http.response.body', but got '{kind}'.")
        elif message.get("more_body", False):
            self.write(message.get("body", b""))
        else:
            self._end(message.get("body", b""))

    # ---- the shorter ways

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        """Calls it when the client goes, at the loop's next turn if it has gone."""
        if self.disconnected:
            asyncio.get_running_loop().call_soon(on_disconnect)
        else:
            self.on_disconnect = on_disconnect

    def unwatch(self) -> None:
        self.on_disconnect = None

    def whole_body(self) -> bytes | None:
        """The request's body, if all of it is here and none was read; else None, with nothing read."""
        if self.more_body or self.disconnected or not self._arrived or self._expects_continue:
            return None
        self._arrived = False
        body, self._body = self._body, b""
        return bytes(body)

    def is_wrapped(self, send: Send) -> bool:
        """Whether a middleware stands before it that changes heads, as that of CORS does."""
        return getattr(send, "__self__", None) is not self

    def respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """A whole reply, in one write; nothing where the client is gone."""
        if self.disconnected:
            return
        self._start(status, headers)
        self._end(body)

    def write(self, data: bytes, chunk: bytes | None = None) -> bool:
        """One piece of the body of a reply that was started; False when the client reads slowly, and
        nothing more should come before `drained`. chunk: the same in chunked coding, where that exists."""
        if self.disconnected:
            return True
        wire = self._wire
        if self._chunked and data and not self._head:  # nearly always
            wire.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if chunk is None else chunk)
            return not wire.write_paused
        data = self._framed(data)
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            wire.transport.write(data)
        return not wire.write_paused

    async def drained(self) -> None:
        """Until the client has read enough of what was written, or is gone."""
        if self._wire.write_paused:
            await self._wire.drained()

    @property
    def transport(self) -> asyncio.Transport:
        return self._wire.transport

    # ---- writing

    def _start(self, status: int, headers: Iterable[Header]) -> None:
        """Makes the head; it goes out with the first piece of the body, as ASGI wants it."""
        self.started = True
        self._expects_continue = False
        lines: list[bytes] = []
        says_close = chunked = False
        length: int | None = None
        for given, value in (*self._wire.default_headers, *headers):
            name = given.lower()
            lines.append(b"%b: %b" % (name, value))
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                says_close |= b"close" in value.lower()
            elif name == b"transfer-encoding":
                chunked = value.lower() == b"chunked"
        if says_close:
            self.keep_alive = False
        has_body = status not in NO_BODY_STATUSES and self.scope["method"] != "HEAD"
        if has_body and length is None and not chunked:
            if self.scope["http_version"] == "1.0":
                self.keep_alive = False  # the end of the connection is the end of the body
            else:
                chunked = True
                lines.append(b"transfer-encoding: chunked")
        if not self.keep_alive and not says_close:
            lines.append(b"connection: close")
        lines.append(b"")
        text = b"\n".join(lines)
        if text.count(b"\n") != len(lines) - 1 or _NOT_IN_HEADERS.search(text):
            raise RuntimeError("Invalid HTTP header.")
        self._chunked = chunked and has_body
        self._left_bytes = length
        self._head = STATUS_LINE[status] + text.replace(b"\n", b"\r\n") + b"\r\n"

    def _framed(self, data: bytes) -> bytes:
        """As it stands on the wire. Raises RuntimeError for more than was announced."""
        if self.scope["method"] == "HEAD":
            self._left_bytes = 0
            return b""
        if self._chunked:
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                raise RuntimeError("Response content longer than Content-Length")
        return data

    def _end(self, data: bytes) -> None:
        data = self._head + self._framed(data)
        self._head = b""
        if self._left_bytes:
            raise RuntimeError("Response content shorter than Content-Length")
        if self._chunked:
            data += b"0\r\n\r\n"
        wire = self._wire
        if data:
            wire.transport.write(data)
        self.complete = True
        self._tell()
        if not self.keep_alive:
            wire.transport.close()
        wire.answered()


def cycle_of(scope: Scope, send: Send) -> Cycle | None:
    """The cycle below `send`, if nothing stands between that would see (or change) the body: then its
    shorter ways may be used. None under another server, in tests, or behind a stranger's middleware.
    """
    owner = getattr(scope.get(SERVER_SEND, send), "__self__", None)
    return owner if isinstance(owner, Cycle) else None
