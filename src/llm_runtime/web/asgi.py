"""The ASGI types, and the small pieces every raw endpoint needs: headers, request id, whole replies."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.web.errors import Header, WriteError, error_response
from llm_runtime.wire.errors import error_body

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = dict[bytes, bytes]

SERVER_SEND = "llm_runtime.server_send"
"""Scope key: the server's own `send`, where a middleware wraps it."""

_SAFE_ID: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_ID_BYTES: Final = 16
_NUM_IDS_AT_ONCE: Final = 64


class _Random:
    """Of the system's random numbers, enough for many ids at a time. No process may fork off once it has
    begun to give ids."""

    __slots__ = ("_hex", "_position")

    def __init__(self) -> None:
        self._hex = ""
        self._position = 0

    def id(self) -> str:
        position = self._position
        if position == len(self._hex):
            self._hex = os.urandom(_ID_BYTES * _NUM_IDS_AT_ONCE).hex()
            position = 0
        self._position = end = position + 2 * _ID_BYTES
        return self._hex[position:end]


_RANDOM: Final = _Random()


def headers_of(scope: Scope) -> Headers:
    """By lower-case name; where one is repeated, the first counts."""
    return dict(reversed(scope["headers"]))


def request_id_of(headers: Headers) -> str:
    """The client's x-request-id where it is short and safe to log, else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and _SAFE_ID.fullmatch(given):
        return given.decode("ascii")
    return "req_" + _RANDOM.id()


async def send_bytes(send: Send, status: int, headers: Iterable[Header], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def send_error(
    send: Send,
    error: LLMRuntimeError,
    request_id: str,
    *,
    extra: Iterable[Header] = (),
    write: WriteError = error_body,
) -> None:
    """`write`: how the client's dialect puts an error."""
    status, headers, body = error_response(error, request_id, write)
    headers.extend(extra)
    await send_bytes(send, status, headers, body)


async def abort_connection(scope: Scope, send: Send) -> None:
    """Drops what a client refuses to read. Closing would flush first, which is what never ends; ASGI
    has no word for it, so this reaches for the transport of the server's cycle where there is one.
    """
    server_send = scope.get(SERVER_SEND, send)
    transport = getattr(getattr(server_send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
        await asyncio.sleep(0)  # the server hears of it, and does not complain of a missing end
