"""One connection to an upstream: parses answers, hands bytes to the exchange it carries."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol, cast

import httptools

from llm_runtime.core.errors import BackendError, BackendProtocolError
from llm_runtime.engines.upstream.exchange import Exchange

WITHOUT_BODY = (204, 304)
MAX_CHUNK_BYTES: Final = 4096
"""Of chunks that are looked at without the parser: tokens are short, and the table stays small."""


@dataclass(frozen=True, slots=True)
class Limits:
    """connect_timeout_s: until a connection (with TLS) stands; all other waiting is the caller's.

    idle_s: an unused connection is dropped after it, below the 5 s of common servers.
    buffer_bytes: unread body above which no more is read from the connection.
    max_head_bytes, max_body_bytes: of one answer; above them it is a protocol error.
    """

    connect_timeout_s: float = 5.0
    idle_s: float = 4.0
    buffer_bytes: int = 128 * 1024
    max_head_bytes: int = 64 * 1024
    max_body_bytes: int = 1024 * 1024 * 1024


class Home(Protocol):
    """Where a connection goes when it is free and reports when it is gone: the pool."""

    @property
    def limits(self) -> Limits: ...

    def opened(self, connection: Connection) -> None: ...

    def released(self, connection: Connection) -> None: ...

    def gone(self, connection: Connection) -> None: ...

    def retry(self, exchange: Exchange) -> bool: ...


_HEADS: Final[dict[int, bytes]] = {}
"""By the length of a whole chunk: how it has to begin. Filled as lengths are seen."""


def lone_chunk(data: bytes) -> bytes | None:
    """What is inside, if `data` is one whole chunk of a body and nothing else, written as servers that send
    token by token mostly write it; else None, and the parser is to look. The last chunk, which is empty, is
    none."""
    num_bytes = len(data)
    head = _HEADS.get(num_bytes)
    if head is None:
        if num_bytes > MAX_CHUNK_BYTES:
            return None
        head = _HEADS[num_bytes] = chunk_head(num_bytes)
    if head and data.startswith(head) and data.endswith(b"\r\n"):
        return data[len(head) : -2]
    return None


def chunk_head(num_bytes: int) -> bytes:
    """The length and line end that begin a chunk of so many bytes in all; b"" where none has so many."""
    for num_digits in range(1, 6):
        num_inside = num_bytes - num_digits - 4
        head = b"%x\r\n" % max(num_inside, 0)
        if num_inside > 0 and len(head) == num_digits + 2:
            return head
    return b""


class Connection(asyncio.Protocol):
    """Owned by the pool; called by the loop only. Carries one exchange at a time, never pipelines.

    In the middle of a chunked body, when somebody listens and a read brought exactly one chunk, the parser is
    not asked: it waits for the next chunk's head before and after.
    """

    def __init__(self, home: Home) -> None:
        # First what every token looks at: compiled, these lie side by side in memory, in this order.
        self._exchange: Exchange | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._between_chunks = False  # of a chunked body; unless bytes of the next one's head came
        self._num_bytes = 0  # of the answer at hand
        self._limits = home.limits
        self._home = home
        self._transport: asyncio.Transport | None = None
        self._num_answers = 0
        self._surplus = False  # bytes came after its end
        self._complete = False
        self._keep_alive = False
        self._ends_at_eof = False
        self._paused = False
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, exchange: Exchange) -> None:
        """Sends the request. The connection must be usable and free."""
        self._exchange = exchange
        self._num_bytes = 0
        self._complete = self._ends_at_eof = self._between_chunks = False
        exchange.carried_by(self)
        exchange.was_sent = True
        exchange.num_sends += 1
        assert self._transport is not None
        self._transport.write(exchange.payload)

    def resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def close(self, error: BackendError) -> None:
        """Aborts, and tells whoever waits for an answer."""
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.fail(error)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)
        self._home.opened(self)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or self._parser is None:
            self.abort()  # nobody asked: whatever it is, this connection is out of step
            return
        if self._between_chunks and self._num_bytes + len(data) <= self._limits.max_body_bytes:
            body = lone_chunk(data)
            if body is not None and exchange.take(body, data):
                self._num_bytes += len(data)
                return
        if not exchange.has_started:
            exchange.started()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if not self._complete:
                self._break("The engine's answer is not valid HTTP.", exc)
                return
            self._surplus = True
        if self._complete:
            self._release(exchange)
            return
        if self._between_chunks and not data.endswith(b"\r\n"):
            self._between_chunks = False  # the parser has begun to read the next one's length
        self._num_bytes += len(data)
        if self._num_bytes > self._limits.max_head_bytes and not self._has_fair_size(exchange):
            return
        exchange.arrived()
        if exchange.num_buffered > self._limits.buffer_bytes and not self._paused and self._transport:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        self._transport = self._parser = None  # the parser refers back to this object
        self._home.gone(self)
        if exchange is None or exchange.ended:
            return
        if not exchange.has_started:
            reused = self._num_answers > 0
            if not (reused and self._home.retry(exchange)):
                error = BackendError("The engine closed the connection without an answer.")
                error.__cause__ = exc
                exchange.fail(error, lost=True)
        elif exc is None and self._ends_at_eof:
            exchange.finish()
        elif exc is None:
            message = "The engine closed the connection in the middle of its answer."
            exchange.fail(BackendProtocolError(message), lost=True)
        else:
            error = BackendError("The connection to the engine was lost in the middle of its answer.")
            error.__cause__ = exc
            exchange.fail(error, lost=True)

    # httptools

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("more than one answer to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._exchange
        if exchange is not None:
            name = name.lower()
            known = exchange.headers.get(name)
            exchange.headers[name] = value if known is None else known + b", " + value

    def on_headers_complete(self) -> None:
        exchange, parser = self._exchange, self._parser
        if exchange is None or parser is None:
            return
        status = parser.get_status_code()
        if status < 200:
            exchange.headers.clear()  # an interim answer: the real one follows
            return
        exchange.status = status
        coding = exchange.headers.get(b"transfer-encoding")
        # `find`, because `in` first takes what it looks for as a number, and raises and drops an error.
        chunked = coding is not None and coding.lower().find(b"chunked") >= 0
        sized = b"content-length" in exchange.headers
        self._ends_at_eof = not (chunked or sized or status in WITHOUT_BODY)

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is not None:
            exchange.append(body)

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_message_complete(self) -> None:
        exchange, parser = self._exchange, self._parser
        if exchange is not None and parser is not None and exchange.status:
            self._complete = True
            self._keep_alive = parser.should_keep_alive()  # the parser only knows while in this call

    # helpers

    def _release(self, exchange: Exchange) -> None:
        self._exchange = None
        self._num_answers += 1
        self.resume()
        if self._may_go_on():
            self._home.released(self)
        else:
            self.abort()
        exchange.finish()

    def _may_go_on(self) -> bool:
        if self._transport is None or self._surplus or not self._keep_alive:
            return False
        answered_early = self._transport.get_write_buffer_size() > 0
        return self.usable and not answered_early

    def _has_fair_size(self, exchange: Exchange) -> bool:
        if not exchange.status:
            self._break("The head of the engine's answer is too large.", None)
        elif self._num_bytes > self._limits.max_body_bytes:
            self._break("The engine's answer is too large.", None)
        return self._exchange is not None

    def _break(self, message: str, cause: Exception | None) -> None:
        error = BackendProtocolError(message)
        error.__cause__ = cause
        self.close(error)
