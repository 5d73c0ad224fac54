"""Reads a request body once, counted, whatever the client claims about its length."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from llm_runtime.core.errors import (
    BodyTimeout,
    BodyTooLarge,
    ClientGone,
    InvalidRequest,
    LLMRuntimeError,
    UnsupportedMediaType,
)
from llm_runtime.web.asgi import Headers, Receive, Send
from llm_runtime.web.cycle import Cycle
from llm_runtime.web.errors import Header, WriteError, error_response
from llm_runtime.wire.errors import error_body

LINGER_S = 2.0


def check_media_type(headers: Headers) -> None:
    """Raises UnsupportedMediaType for what is not JSON by its own word, InvalidRequest for what is
    compressed."""
    content_type = headers.get(b"content-type")
    if content_type != b"application/json":  # as nearly everybody says it
        if content_type is None:
            raise UnsupportedMediaType("The request has no content-type; send application/json.")
        media_type = content_type.partition(b";")[0].strip().lower()
        if media_type != b"application/json" and not media_type.endswith(b"+json"):
            raise UnsupportedMediaType("The request body must be sent as application/json.")
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise InvalidRequest(
            "Compressed request bodies are not supported.", reason="unsupported_content_encoding"
        )


def body_here(cycle: Cycle | None, limit_bytes: int) -> bytes | None:
    """The whole body where it came over a connection of ours and is here by now, which it mostly is; else
    None, with nothing read. Raises BodyTooLarge."""
    whole = cycle.whole_body() if cycle is not None else None
    if whole is not None and len(whole) > limit_bytes:
        raise _too_large(limit_bytes)
    return whole


async def read_body(headers: Headers, receive: Receive, limit_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises BodyTooLarge as soon as the limit is known to be passed, ClientGone when
    the client leaves, BodyTimeout when it does not finish in time."""
    declared = headers.get(b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("The client left while sending its request.")
                chunk: bytes = message.get("body", b"")
                num_bytes += len(chunk)
                if num_bytes > limit_bytes:
                    raise _too_large(limit_bytes)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    except TimeoutError:
        raise BodyTimeout(f"The request body was not received within {timeout_s:g} s.") from None


async def refuse_unread(
    send: Send,
    receive: Receive,
    error: LLMRuntimeError,
    request_id: str,
    *,
    extra: Iterable[Header] = (),
    write: WriteError = error_body,
) -> None:
    """Answers while the client may still be sending, then closes the connection.

    What comes on is read and dropped for a moment: closing on unread bytes resets the connection, and
    the client might never see why.
    """
    status, headers, body = error_response(error, request_id, write)
    headers.extend(extra)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    try:
        async with asyncio.timeout(LINGER_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    break
    except TimeoutError:
        pass  # it has had its moment
    await send({"type": "http.response.body", "body": b""})


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than the limit of {limit_bytes} bytes.")
