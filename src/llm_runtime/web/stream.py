"""Writes one streamed reply: the commit point, keep-alives, and errors after headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from llm_runtime.core.errors import ClientGone, LLMRuntimeError
from llm_runtime.core.sink import Sink
from llm_runtime.web.asgi import Send
from llm_runtime.web.cycle import Cycle
from llm_runtime.web.errors import INTERNAL_ERROR, Header, error_object

STREAM_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-store"),
    (b"x-accel-buffering", b"no"),
)


class Pullable(Protocol):
    """A handle, as far as a writer is concerned. `pull` gives bytes, b"" when only woken, or the end."""

    keep_alive_due: bool

    @property
    def finished(self) -> object | None: ...

    async def pull(self, sink: Sink | None = None) -> Any: ...


class EventDialect(Protocol):
    keep_alive: bytes

    def error_event(self, error: dict[str, Any]) -> bytes: ...


class StreamWriter:
    """Owned by the request's task. `started` tells whether the status line is out: before that an
    error still has a status of its own, afterwards it becomes the stream's last event.

    head: the headers, asked for when they go out. receipt: what a comment after the last event says.
    cycle: of our own connection; then bytes go to the client without a turn of this task. lines: the headers
    as its `begin` wants them, where nothing stands before it that would change them.
    """

    __slots__ = ("_cycle", "_dialect", "_head", "_lines", "_receipt", "_send", "_started")

    def __init__(
        self,
        send: Send,
        dialect: EventDialect,
        head: Callable[[], list[Header]],
        receipt: Callable[[], bytes] | None = None,
        cycle: Cycle | None = None,
        lines: Callable[[], bytes] | None = None,
    ) -> None:
        self._send: Final = send
        self._dialect: Final = dialect
        self._head: Final = head
        self._receipt: Final = receipt
        self._cycle: Final = cycle
        self._lines: Final = lines
        self._started = False

    @property
    def started(self) -> bool:
        return self._started or (self._cycle is not None and self._cycle.started)

    async def run(self, handle: Pullable) -> None:
        """Returns after the last byte. Raises what ended the stream early, after telling the client
        if the stream had begun."""
        cycle = self._cycle
        if cycle is not None and self._lines is not None:
            cycle.begin_by(self._lines)
        try:
            while True:
                if cycle is None or not (self._lines is not None or self.started):
                    item = await handle.pull()
                else:
                    if cycle.flow.paused and self.started:
                        await cycle.drained()  # before that there is nothing yet that could be too much
                    item = await handle.pull(cycle)
                if item.__class__ is not bytes:
                    if not self.started:
                        await self._start()
                    await self._end(b"")
                    return
                if not item:
                    if handle.keep_alive_due:
                        await self._keep_alive(handle)
                    continue
                if not self.started:
                    await self._start()
                if handle.finished is not None:
                    await self._end(item)
                    return
                if cycle is not None:
                    cycle.write(item)
                else:
                    await self._write(item)
        except ClientGone:
            raise
        except LLMRuntimeError as error:
            await self._fail(error)
            raise
        except Exception:
            await self._fail(INTERNAL_ERROR)
            raise

    async def _start(self) -> None:
        cycle = self._cycle
        if cycle is not None and self._lines is not None:
            head = self._lines()
            self._started = True
            if cycle.flow.paused:
                await cycle.drained()
            cycle.begin(head)
            return
        start = {"type": "http.response.start", "status": 200, "headers": self._head()}
        self._started = True
        await self._send(start)

    async def _write(self, data: bytes) -> None:
        if self._cycle is not None:
            self._cycle.write(data)
        else:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _end(self, last: bytes) -> None:
        if self._receipt is not None:
            last += b": " + self._receipt() + b"\n\n"
        cycle = self._cycle
        if cycle is None or self._lines is None:
            await self._send({"type": "http.response.body", "body": last})
            return
        if cycle.flow.paused:
            await cycle.drained()
        cycle.finish(last)

    async def _keep_alive(self, handle: Pullable) -> None:
        handle.keep_alive_due = False
        if not self.started:
            await self._start()
        await self._write(self._dialect.keep_alive)

    async def _fail(self, error: LLMRuntimeError) -> None:
        if self.started:
            event = self._dialect.error_event(error_object(error))
            await self._send({"type": "http.response.body", "body": event})
