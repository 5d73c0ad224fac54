"""One client connection: HTTP/1.1 in, cycles out. Takes the place of uvicorn's own protocol class behind
the same ASGI application (`install`, or `http=` of uvicorn's configuration).

Beyond that one it limits headers in size and time, puts its refusals into our error object, and spares
what this server does not use: WebSockets, access lines, a timer and a task for every request. The
application never hears of what is refused here, so that is told to `refused`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from llm_runtime.core.errors import BodyTimeout, HeadersTooLarge, InvalidRequest, LLMRuntimeError
from llm_runtime.web.asgi import ASGIApp, Headers, Scope, request_id_of
from llm_runtime.web.cycle import Cycle, Endpoint
from llm_runtime.web.errors import Header, error_response, row_of
from llm_runtime.web.flow import Flow
from llm_runtime.web.workers import Workers

MAX_HEADER_BYTES: Final = 64 * 1024
ENDPOINTS: Final = "cycle_endpoints"
"""The attribute by which an application names endpoints that serve a cycle without ASGI between: those of
POST, by path as it stands in a request."""
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}

Refused = Callable[[str, int, str], None]
"""Of the endpoint ("other": nobody knows which), the status and the reason."""


class ServerProtocol(asyncio.Protocol):
    """Made by uvicorn, used on the loop's thread.

    header_timeout_s: from connecting, or from a request's first byte, to the end of its headers. workers: of
    the server whose connection this is.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        header_timeout_s: float = 30.0,
        refused: Refused | None = None,
        workers: Workers | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.transport: asyncio.Transport
        self._flow: Flow
        self.server_state = server_state
        self._all_tasks = server_state.tasks
        self._header_timeout_s = header_timeout_s
        self._refused = refused
        self._workers = workers if workers is not None else Workers()
        self._app = cast(ASGIApp, config.loaded_app)
        self._app_state = app_state
        self._root_path = config.root_path
        self._endpoints: Mapping[bytes, Endpoint] = {}
        if not self._root_path:
            self._endpoints = getattr(config.loaded_app, ENDPOINTS, self._endpoints)
        self._keep_alive_s = float(config.timeout_keep_alive)
        self._loop = _loop or asyncio.get_running_loop()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        # A client may send its next request although this one's answer closes the connection.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._fixed_scope: dict[str, Any] = {}
        self._writable: asyncio.Event | None = None
        self._read_paused = False
        self._deaf = False
        # The request being read
        self._in_headers = True
        self._num_header_bytes = 0
        self._url = b""
        self._headers: Headers = {}
        self._raw_headers: list[Header] | None = None  # where a name is repeated
        self._expects_continue = False
        # The latest request, and those before it that still wait for their turn
        self._cycle: Cycle | None = None
        self._waiting: deque[Cycle] = deque()
        self._tasks: dict[Cycle, asyncio.Task[None]] = {}
        # One timer for all limits: it looks at least once per shortest limit, and is never moved.
        self._due_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look_s = min(self._header_timeout_s, self._keep_alive_s)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._flow = Flow(self.transport)
        self.server_state.connections.add(cast(Any, self))
        self._fixed_scope = {
            "type": "http",
            "asgi": _ASGI,
            "server": get_local_addr(self.transport),
            "client": get_remote_addr(self.transport),
            "scheme": "https" if is_ssl(self.transport) else "http",
            "root_path": self._root_path,
        }
        self._expect(self._header_timeout_s)

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # to what we do not speak: the request is answered as if it had not asked
        except httptools.HttpParserError:
            self._refuse(InvalidRequest("The request is not valid HTTP.", reason="invalid_http"))
            return
        if self._in_headers and not self.transport.is_closing():
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self._refuse(HeadersTooLarge("The request's headers are too large."))

    def eof_received(self) -> None:
        """Half a connection is none: what is under way is cancelled."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.connections.discard(cast(Any, self))
        if self._timer is not None:
            self._timer.cancel()
        self.resume_writing()
        for cycle in (*self._tasks, *self._waiting):
            cycle.lost()
        self._waiting.clear()
        self._parser = self._cycle = self._flow.task = None  # which refer back to this object

    def pause_writing(self) -> None:
        self._flow.paused = True

    def resume_writing(self) -> None:
        self._flow.paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    # ---- httptools

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._raw_headers = None
        self._expects_continue = False
        if not self._in_headers:
            self._in_headers = True
            self._num_header_bytes = 0
            self._expect(self._header_timeout_s)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        headers, raw = self._headers, self._raw_headers
        if name not in headers:
            headers[name] = value
            if raw is not None:
                raw.append((name, value))
        elif raw is not None:
            raw.append((name, value))
        else:
            self._raw_headers = [*headers.items(), (name, value)]

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._due_at = None
        parser = self._parser
        if self._deaf or parser is None:
            return
        method = parser.get_method()
        headers = self._headers
        keeps_alive: bool = parser.should_keep_alive()
        if keeps_alive and b"connection" not in headers and b"proxy-connection" not in headers:
            version = "1.1"  # the older one keeps alive only what says so; asking makes a text
        else:
            version = parser.get_http_version()
        is_old = version == "1.0"
        cycle = Cycle(
            self,
            self._flow,
            headers,
            is_head=method == b"HEAD",
            is_old=is_old,
            keep_alive=keeps_alive and not is_old,
            expects_continue=self._expects_continue,
        )
        endpoint = self._endpoints.get(self._url) if method == b"POST" else None
        if endpoint is not None:
            cycle.endpoint = endpoint
        else:
            cycle.scope = self._scope(version, method.decode("ascii"))
        before, self._cycle = self._cycle, cycle
        if before is None or before.complete:
            self._start(cycle)
        else:
            self.pause_reading()
            self._waiting.append(cycle)

    def on_body(self, body: bytes) -> None:
        if self._cycle is not None and not self._cycle.complete:
            self._cycle.body_arrived(body)

    def on_message_complete(self) -> None:
        if self._cycle is not None and not self._cycle.complete:
            self._cycle.body_ended()

    def _scope(self, version: str, method: str) -> Scope:
        raw_path, query = self._url, b""
        if not raw_path.startswith(b"/") or raw_path.find(b"?") >= 0 or raw_path.find(b"#") >= 0:
            parsed = httptools.parse_url(self._url)
            raw_path, query = parsed.path, parsed.query or b""
        path = raw_path.decode("ascii")
        if "%" in path:
            path = unquote(path)
        root = self._root_path
        return {
            **self._fixed_scope,
            "http_version": version,
            "method": method,
            "path": root + path,
            "raw_path": root.encode("ascii") + raw_path,
            "query_string": query,
            "headers": self._raw_headers or list(self._headers.items()),
            "state": self._app_state.copy(),
        }

    # ---- cycles

    def _start(self, cycle: Cycle) -> None:
        if cycle.endpoint is not None:
            task = self._workers.serve(cycle, self._app, self._loop)
        else:
            task = self._loop.create_task(cycle.run(self._app))
        self._tasks[cycle] = self._flow.task = task
        self._all_tasks.add(task)

    def left(self, cycle: Cycle) -> None:
        """For the cycle: its task ends."""
        self._all_tasks.discard(self._tasks.pop(cycle))

    def answered(self) -> None:
        """For the cycle: its reply is complete; the next one's turn."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.resume_reading()
        if self._waiting:
            self._start(self._waiting.popleft())
        elif not self._in_headers:
            self._expect(self._keep_alive_s)

    @property
    def default_headers(self) -> list[Header]:
        return self.server_state.default_headers

    async def drained(self) -> None:
        """For the cycle: until the client has read enough of what was written, or is gone."""
        while self._flow.paused:
            if self._writable is None:
                self._writable = asyncio.Event()
            await self._writable.wait()

    def pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            self.transport.resume_reading()

    def shutdown(self) -> None:
        """For uvicorn, when the server ends: no further request."""
        if self._cycle is None or self._cycle.complete:
            self.transport.close()
        else:
            self._cycle.keep_alive = False

    # ---- limits and refusals

    def _expect(self, within_s: float) -> None:
        now = self._loop.time()
        self._due_at = now + within_s
        if self._timer is None:
            self._timer = self._loop.call_at(now + min(within_s, self._look_s), self._look)

    def _look(self) -> None:
        self._timer = None
        due_at, now = self._due_at, self._loop.time()
        if due_at is None or self.transport.is_closing():
            return
        if due_at > now:
            self._timer = self._loop.call_at(min(due_at, now + self._look_s), self._look)
        elif self._in_headers and (self._num_header_bytes or self._cycle is not None):
            self._refuse(BodyTimeout("The request's headers were not received in time."))
        else:
            self.transport.close()  # it never said a word, or has no more to say

    def _refuse(self, error: LLMRuntimeError) -> None:
        """Hears nothing more from this client, and says why if it can be said."""
        self._deaf = True
        self._due_at = None
        cycle = self._cycle
        if self._waiting:
            self.transport.close()
        elif cycle is not None and not cycle.complete and not cycle.more_body:
            cycle.keep_alive = False  # the request before is whole, and still gets its answer
        elif cycle is not None and cycle.more_body and cycle.started:
            self.transport.close()  # it was answered before its body went wrong
        else:
            self._say(error)
            self.transport.close()

    def _say(self, error: LLMRuntimeError) -> None:
        if self._refused is not None:
            self._refused("other", row_of(error).status, error.reason)
        status, headers, body = error_response(error, request_id_of({}))
        closing = dict([*self.default_headers, *headers, (b"connection", b"close")])
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in closing.items()), b"\r\n"]
        self.transport.write(b"".join(lines) + body)


def server_protocol(header_timeout_s: float, refused: Refused | None = None) -> Any:
    """What uvicorn wants as a protocol class and only calls, with the limit. No subclass: one of Python's
    cannot be made of a compiled class."""
    return partial(ServerProtocol, header_timeout_s=header_timeout_s, refused=refused, workers=Workers())


def install(config: Any, header_timeout_s: float, refused: Refused | None = None) -> None:
    """For a uvicorn that somebody else started, and that was left to choose its protocol class: it makes
    connections of ours from now on. config: uvicorn's, None where the server is not uvicorn."""
    if config is not None and config.http == "auto":
        config.http_protocol_class = server_protocol(header_timeout_s, refused)
