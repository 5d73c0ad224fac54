"""One request and its reply on a connection of ours: ASGI's `receive` and `send`, and shorter ways beside
them for endpoints that know whom they talk to (`cycle_of`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from llm_runtime.core.sink import Sink
from llm_runtime.web.asgi import SERVER_SEND, ASGIApp, Headers, Message, Scope, Send
from llm_runtime.web.errors import Header
from llm_runtime.web.flow import Flow
from llm_runtime.web.heads import FixedLines, as_chunk, checked, pairs_of

BODY_HIGH_WATER_BYTES: Final = 64 * 1024
NO_BODY_STATUSES: Final = (204, 304)

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_DISCONNECT: Final = {"type": "http.disconnect"}
_OK: Final[bytes] = STATUS_LINE[200]
_CLOSE: Final = b"connection: close\r\n"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_FIXED: Final = FixedLines()
_NO_SCOPE: Final[dict[str, Any]] = {}

log = logging.getLogger("uvicorn.error")


class Wire(Protocol):
    """The connection, as the cycle at its head sees it."""

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


class Endpoint(Protocol):
    """What answers a POST on a connection of ours without ASGI between."""

    def serve(self, cycle: Cycle) -> Awaitable[None]: ...


class Cycle(Sink):
    """Made by the connection, which feeds it; read and answered by the application's task.

    headers: by lower-case name, the first of each. scope: for ASGI; empty where an endpoint serves the cycle
    itself. on_disconnect: called once from the loop when the client goes before its reply is complete; to be
    set by `watch`. `respond`, `reply`, `begin`, `write` and `finish` never suspend; the rest is ASGI as any
    server speaks it.
    """

    __slots__ = (
        "_arrived", "_body", "_chunked", "_expects_continue", "_head", "_in_chunks", "_is_head", "_is_old",
        "_left_bytes", "_lines", "_news", "_wire", "complete", "disconnected", "endpoint", "flow", "headers",
        "keep_alive", "more_body", "on_disconnect", "scope", "started",
    )  # fmt: skip

    def __init__(
        self,
        wire: Wire,
        flow: Flow,
        headers: Headers,
        *,
        is_head: bool = False,
        is_old: bool = False,
        keep_alive: bool = True,
        expects_continue: bool = False,
    ) -> None:
        """is_head: the method is HEAD. is_old: it came over HTTP/1.0."""
        # First what every token looks at: compiled, these lie side by side in memory, in this order.
        self.flow: Final = flow
        self.disconnected = False
        self._in_chunks = False
        """The body is in chunked coding, and the head is out."""
        self.headers: Final = headers
        self.endpoint: Endpoint | None = None
        self.scope: Scope = _NO_SCOPE
        self.keep_alive = keep_alive
        self.more_body = True
        self.started = False
        self.complete = False
        self.on_disconnect: Callable[[], None] | None = None
        self._wire: Final = wire
        self._is_head: Final = is_head
        self._is_old: Final = is_old
        self._expects_continue = expects_continue
        self._body: bytes | bytearray = b""
        self._arrived = False
        self._news: asyncio.Event | None = None
        self._head = b""  # waits for the first piece of the body
        self._lines: Callable[[], bytes] | None = None  # so does the head, to be made then
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
            self._lines = None  # it refers to whom the bytes come from, who refers here
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
        """The call of the endpoint, where it is known and needs no ASGI, else of the application, and what is
        left to do when it ends wrongly. Raises nothing."""
        endpoint = self.endpoint
        try:
            if endpoint is not None:
                await endpoint.serve(self)
            else:
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
            self.flow.transport.close()
            return
        self._head = b""
        text = b"Internal Server Error"
        kind = (b"content-type", b"text/plain; charset=utf-8")
        self.respond(500, [kind, (b"content-length", b"%d" % len(text)), (b"connection", b"close")], text)

    # ---- ASGI

    async def receive(self) -> Message:
        if self._expects_continue and not self.flow.transport.is_closing():
            self._expects_continue = False
            self.flow.transport.write(_CONTINUE)
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
        if self.flow.paused and not self.disconnected:
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

    def reply(self, lines: bytes, body: bytes) -> None:
        """What `respond` does for status 200 and a POST. lines: the headers but the length, as `lines_of`
        makes them; who calls vouches for them."""
        if self.disconnected:
            return
        _FIXED.update(self._wire.default_headers)
        length = len(body)
        if _FIXED.frames:
            self.respond(200, [*pairs_of(lines), (b"content-length", b"%d" % length)], body)
            return
        self.started = True
        self._expects_continue = False
        close = b"" if self.keep_alive else _CLOSE
        self.flow.transport.write(
            b"%b%b%bcontent-length: %d\r\n%b\r\n%b" % (_OK, _FIXED.lines, lines, length, close, body)
        )
        self._ended()

    def begin_by(self, lines: Callable[[], bytes]) -> None:
        """As `begin`, at the first `write` or `push`. lines: called then."""
        self._lines = lines

    def begin(self, lines: bytes) -> None:
        """The head of a stream in answer to a POST, which goes out with what is written first; nothing where
        the client is gone. lines: as for `reply`."""
        if self.disconnected:
            return
        self._lines = None
        _FIXED.update(self._wire.default_headers)
        if _FIXED.frames:
            self._start(200, pairs_of(lines))
            return
        self.started = True
        self._expects_continue = False
        chunked = b""
        if self._is_old:
            self.keep_alive = False  # the end of the connection is the end of the body
        else:
            self._chunked = True
            chunked = _CHUNKED
        close = b"" if self.keep_alive else _CLOSE
        self._head = b"%b%b%b%b%b\r\n" % (_OK, _FIXED.lines, lines, chunked, close)

    def push(self, data: bytes, chunk: bytes | None) -> bool:
        """As `write`. chunk: the same in chunked coding, where that exists."""
        if chunk is None or not self._in_chunks or self.disconnected:
            return self.write(data)
        flow = self.flow
        flow.transport.write(chunk)
        return not flow.paused

    def write(self, data: bytes) -> bool:
        """One piece of the body of a reply that was started; False when the client reads slowly, and
        nothing more should come before `drained`."""
        if self.disconnected:
            return True
        if self._lines is not None:
            self.begin(self._lines())
        flow = self.flow
        data = self._framed(data)
        if self._head:
            data, self._head = self._head + data, b""
            self._in_chunks = self._chunked
        if data:
            flow.transport.write(data)
        return not flow.paused

    def finish(self, data: bytes) -> None:
        """The last piece of the body, which may be empty; nothing where the client is gone."""
        if not self.disconnected:
            self._end(data)

    async def drained(self) -> None:
        """Until the client has read enough of what was written, or is gone."""
        if self.flow.paused:
            await self._wire.drained()

    @property
    def transport(self) -> asyncio.Transport:
        return self.flow.transport

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
        has_body = status not in NO_BODY_STATUSES and not self._is_head
        if has_body and length is None and not chunked:
            if self._is_old:
                self.keep_alive = False  # the end of the connection is the end of the body
            else:
                chunked = True
                lines.append(b"transfer-encoding: chunked")
        if not self.keep_alive and not says_close:
            lines.append(b"connection: close")
        text = checked(lines)
        self._chunked = chunked and has_body
        self._left_bytes = length
        self._head = STATUS_LINE[status] + text + b"\r\n"

    def _framed(self, data: bytes) -> bytes:
        """As it stands on the wire. Raises RuntimeError for more than was announced."""
        if self._is_head:
            self._left_bytes = 0
            return b""
        if self._chunked:
            return as_chunk(data) if data else b""
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
        if data:
            self.flow.transport.write(data)
        self._ended()

    def _ended(self) -> None:
        self.complete = True
        self.on_disconnect = self._lines = None
        self._tell()
        if not self.keep_alive:
            self.flow.transport.close()
        self._wire.answered()


def cycle_of(scope: Scope, send: Send) -> Cycle | None:
    """The cycle below `send`, if nothing stands between that would see (or change) the body: then its
    shorter ways may be used. None under another server, in tests, or behind a stranger's middleware.
    """
    owner = getattr(scope.get(SERVER_SEND, send), "__self__", None)
    return owner if isinstance(owner, Cycle) else None
