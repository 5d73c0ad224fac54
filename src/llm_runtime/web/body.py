"""Reads a request body once, counted, whatever the client claims about its length."""

from __future__ import annotations

import asyncio

from llm_runtime.core.errors import BodyTooLarge, ClientGone, InvalidRequest, UnsupportedMediaType
from llm_runtime.web.asgi import Receive, Scope, header


def check_media_type(scope: Scope) -> None:
    """Raises UnsupportedMediaType for anything that is not JSON by its own word, or is compressed."""
    content_type = header(scope, b"content-type")
    if content_type is not None:
        media_type = content_type.split(b";", 1)[0].strip().lower()
        if media_type != b"application/json" and not media_type.endswith(b"+json"):
            raise UnsupportedMediaType("The request body must be sent as application/json.")
    else:
        raise UnsupportedMediaType("The request has no content-type; send application/json.")
    encoding = header(scope, b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise UnsupportedMediaType("Compressed request bodies are not supported.")


async def read_body(scope: Scope, receive: Receive, limit_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises BodyTooLarge as soon as the limit is known to be passed, ClientGone
    when the client leaves, InvalidRequest when it does not finish in time."""
    declared = header(scope, b"content-length")
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
                chunk = message.get("body", b"")
                num_bytes += len(chunk)
                if num_bytes > limit_bytes:
                    raise _too_large(limit_bytes)
                if not message.get("more_body", False):
                    if not chunks:
                        return bytes(chunk)
                    chunks.append(chunk)
                    return b"".join(chunks)
                chunks.append(chunk)
    except TimeoutError:
        raise InvalidRequest("The request body was not received in time.", reason="body_timeout") from None


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than the limit of {limit_bytes} bytes.")
