"""One request and its answer, as the caller sees it.

Everything here is moved by the connection's callbacks; the caller only waits on one future, and
only when nothing has arrived yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from llm_runtime.core.errors import BackendError, LLMRuntimeError
from llm_runtime.core.sink import Sink

MAX_READ_BYTES = 64 * 1024


class Carrier(Protocol):
    """What an exchange may ask of the connection (or of the attempt to get one) below it."""

    def resume(self) -> None: ...

    def abort(self) -> None: ...


class Exchange:
    """Owned by whoever made the request, who reads it from one task at a time or aborts it.

    on_first_byte: called once, when the first byte of an answer arrives, read or not.
    on_closed: called once, when no more bytes will come: answered in full, failed, or aborted.
    Both are called from the loop and must not raise.
    """

    __slots__ = (
        "_carrier",
        "_error",
        "_loop",
        "_poked",
        "_sink",
        "_stopped",
        "_waiter",
        "ended",
        "has_started",
        "headers",
        "lost",
        "num_buffered",
        "num_sends",
        "on_closed",
        "on_first_byte",
        "parts",
        "payload",
        "same_process",
        "status",
        "was_sent",
    )

    def __init__(self, payload: bytes, same_process: Callable[[], bool] | None) -> None:
        """payload: the whole encoded request, kept until an answer begins (it may be sent twice)."""
        # First what every token looks at: compiled, these lie side by side in memory, in this order.
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.num_buffered = 0
        """Body bytes that arrived and are not read yet; the connection adds to both."""
        self.parts: list[bytes] = []
        self._stopped = False
        self.payload = payload
        self.same_process = same_process
        self.status = 0
        """0 until the head of the answer is there."""
        self.headers: dict[bytes, bytes] = {}
        """Of the answer; names in lower case, values of repeated ones joined with a comma."""
        self.was_sent = False
        """Whether the request was handed to a connection: the other side may know of it."""
        self.num_sends = 0
        """How often: a connection may turn out to be closed."""
        self.has_started = False
        """Whether any byte of an answer arrived."""
        self.ended = False
        """Whether no more bytes will come; what has arrived may still have to be read."""
        self.lost = False
        """Whether the connection went away under it: perhaps the engine died of this request."""
        self.on_first_byte: Callable[[], None] | None = None
        self.on_closed: Callable[[], None] | None = None
        self._carrier: Carrier | None = None
        self._error: LLMRuntimeError | None = None
        self._poked = False
        self._loop = asyncio.get_running_loop()

    async def head(self, sink: Sink | None = None) -> bool:
        """Waits for status and headers: True when they are there, False after `poke`.

        sink: as for `read`, which has to be called next; where the status is 200, this then waits on while
        the sink takes what comes.

        Raises BackendUnavailable when nobody took the request, BackendProtocolError for an answer
        that is not HTTP, BackendError when the connection was lost or the exchange aborted.
        """
        while not self.status:
            if self._poked:
                self._poked = False
                return False
            if self._error is not None:
                raise self._error
            self._sink = sink
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._sink = self._waiter = None
        return True

    async def read(self, sink: Sink | None = None) -> bytes | None:
        """The body bytes that arrived since the last read, of a large backlog a part of about
        MAX_READ_BYTES; None at the end, b"" after `poke`.

        sink: gets what arrives while this waits, in the connection's own callback, and the reader sleeps on;
        b"" after it returned False.
        What comes in one read with the end of the answer, and what is too much at once, is returned.
        Raises what `head` raises, after everything that arrived before the failure was returned.
        """
        parts = self.parts
        while self._stopped or not parts:
            if self._poked or self._stopped:
                self._poked = self._stopped = False
                return b""
            if self._error is not None:
                raise self._error
            if self.ended:
                return None
            self._sink = sink
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._sink = self._waiter = None
        # A poke is not answered by data: what came may be half an event, which says nothing to anybody.
        return self._taken(parts)

    def ready(self) -> bytes | None:
        """What `read` would return without waiting, if that is data; else None."""
        parts = self.parts
        return self._taken(parts) if parts and not self._stopped else None

    @property
    def at_end(self) -> bool:
        """Whether `read` would return None without waiting."""
        return self.ended and not (self.parts or self._stopped or self._poked or self._error is not None)

    def _taken(self, parts: list[bytes]) -> bytes:
        if self.num_buffered > MAX_READ_BYTES:
            return self._read_some(parts)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self.num_buffered = 0
        if self._carrier is not None:
            self._carrier.resume()
        return data

    def _read_some(self, parts: list[bytes]) -> bytes:
        """A backlog means that the client reads slowly: what is handed over now waits a second time,
        in the buffer towards it, so it is handed over in portions."""
        num_parts = num_bytes = 0
        for part in parts:
            num_parts += 1
            num_bytes += len(part)
            if num_bytes >= MAX_READ_BYTES:
                break
        data = b"".join(parts[:num_parts])
        del parts[:num_parts]
        self.num_buffered -= num_bytes
        if self._carrier is not None and self.num_buffered <= MAX_READ_BYTES:
            self._carrier.resume()
        return data

    async def read_all(self) -> bytes:
        """The rest of the body, for short answers; pokes do not end it."""
        whole = []
        while (part := await self.read()) is not None:
            whole.append(part)
        return b"".join(whole)

    def poke(self) -> None:
        """Makes a pending or else the next `head` or `read` that finds nothing new return at once."""
        self._poked = True
        self._wake()

    def abort(self) -> None:
        """Closes the connection now; for the engine this is the wish to stop. Harmless at the end."""
        self._end(BackendError("The request to the engine was given up.", reason="upstream_aborted"), False)

    def lose(self, error: LLMRuntimeError) -> None:
        """As `abort`; its reader is told that error, as if the connection had gone away under it."""
        self._end(error, True)

    def _end(self, error: LLMRuntimeError, lost: bool) -> None:
        if not self.ended:
            carrier = self._carrier
            self.fail(error, lost=lost)
            if carrier is not None:
                carrier.abort()

    # From here on: called by the connection and the pool.

    def carried_by(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def started(self) -> None:
        self.has_started = True
        self.payload = b""
        if self.on_first_byte is not None:
            self.on_first_byte()

    def append(self, body: bytes) -> None:
        """Adds body bytes; `arrived` follows once for all of one read."""
        self.parts.append(body)
        self.num_buffered += len(body)

    def take(self, body: bytes, chunk: bytes | None = None) -> bool:
        """`append` and `arrived` in one, for a reader that has everything and listens; False: none does.
        chunk: see `Sink`."""
        sink = self._sink
        if sink is None or self._waiter is None or self.num_buffered:
            return False
        if not sink.push(body, chunk):
            self._stopped = True
            self._wake()
        return True

    def arrived(self) -> None:
        """After all body bytes of one read of the connection were added."""
        parts = self.parts
        is_pushed = self._sink is not None and self._waiter is not None and self.status == 200
        if not is_pushed or self.num_buffered > MAX_READ_BYTES:
            self._wake()
            return
        if not parts:
            return  # a head, or a chunk's: nothing for anybody yet
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self.num_buffered = 0
        self.take(data)

    def finish(self) -> None:
        """The answer is complete."""
        if not self.ended:
            self.ended = True
            self._carrier = None
            self._wake()
            if self.on_closed is not None:
                self.on_closed()

    def fail(self, error: LLMRuntimeError, *, lost: bool = False) -> None:
        if not self.ended:
            self._error = error
            self.lost = lost
            self.payload = b""
            self.finish()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
