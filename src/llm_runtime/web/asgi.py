"""The ASGI types, and the small pieces every raw endpoint needs: headers, request id, whole replies."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.web.errors import Header, error_response

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_SAFE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first value of a header; `name` in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def request_id_of(scope: Scope) -> str:
    """The client's x-request-id where it is short and safe to log, else a new one."""
    given = header(scope, b"x-request-id")
    if given is not None and _SAFE_ID.fullmatch(given):
        return given.decode("ascii")
    return f"req_{uuid.uuid4().hex}"


async def send_bytes(send: Send, status: int, headers: Iterable[Header], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def send_error(
    send: Send, error: LLMRuntimeError, request_id: str, extra: Iterable[Header] = ()
) -> None:
    status, headers, body = error_response(error, request_id)
    headers.extend(extra)
    await send_bytes(send, status, headers, body)
