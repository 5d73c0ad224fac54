"""uvicorn's HTTP protocol with what it leaves out: limits on headers, and our error object where it finds
that a client does not speak HTTP. The application never hears of such connections, so what is refused
here is told to `refused`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from llm_runtime.core.errors import BodyTimeout, HeadersTooLarge, InvalidRequest, LLMRuntimeError
from llm_runtime.web.asgi import request_id_of
from llm_runtime.web.errors import error_response, row_of

MAX_HEADER_BYTES = 64 * 1024

Refused = Callable[[str, int, str], None]
"""Of the endpoint ("other": nobody knows which), the status and the reason."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Made by uvicorn, on the loop's thread.

    header_timeout_s: from connecting, or from a request's first byte, to the end of its headers.
    """

    header_timeout_s = 30.0
    refused: Refused | None = None
    _header_timer: asyncio.TimerHandle | None = None
    _in_headers = True
    _num_header_bytes = 0
    _deaf = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        super().data_received(data)
        if self._in_headers and not self.transport.is_closing():
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self._refuse(HeadersTooLarge("The request's headers are too large."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_headers:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._stop_timer()
        if not self._deaf:
            super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequest("The request is not valid HTTP.", reason="invalid_http"))

    def _expect_headers(self) -> None:
        self._in_headers = True
        self._num_header_bytes = 0
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._headers_late)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_late(self) -> None:
        if self._num_header_bytes == 0 and self.cycle is None:
            self.transport.close()  # it never said a word: a spare connection of a pool
        else:
            self._refuse(BodyTimeout("The request's headers were not received in time."))

    def _refuse(self, error: LLMRuntimeError) -> None:
        """Hears nothing more from this client, and says why if it can be said."""
        self._deaf = True
        self._stop_timer()
        cycle: RequestResponseCycle | None = self.cycle
        if self.pipeline:
            self.transport.close()
        elif cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False  # the request before is whole, and still gets its answer
        elif cycle is not None and cycle.more_body and cycle.response_started:
            self.transport.close()  # it was answered before its body went wrong
        else:
            self._say(error)
            self.transport.close()

    def _say(self, error: LLMRuntimeError) -> None:
        if self.refused is not None:
            self.refused("other", row_of(error).status, error.reason)
        status, headers, body = error_response(error, request_id_of({}))
        closing = dict([*self.server_state.default_headers, *headers, (b"connection", b"close")])
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in closing.items()), b"\r\n"]
        self.transport.write(b"".join(lines) + body)


def guarded_protocol(header_timeout_s: float, refused: Refused | None = None) -> type[GuardedProtocol]:
    """The protocol with its limit, as uvicorn wants it: a class."""
    members: dict[str, object] = {"header_timeout_s": header_timeout_s}
    if refused is not None:
        members["refused"] = staticmethod(refused)
    return type("ServerProtocol", (GuardedProtocol,), members)
