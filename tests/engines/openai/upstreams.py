"""Upstreams that answer as a test scripts them, and gateways in front of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tests.engines.upstream.stubs import CHUNKED, END, Peer, Stub, chunk, stub
from tests.support.server import Served, serve
from tests.wire.builders import DONE, ROLE, STOP, USAGE, text

QUIET = {"telemetry.log_level": "error", "telemetry.gpu_poll_interval_s": "0"}

BLUE = (text("Blue "), text("whales"), text(" sing."))

REPLY: dict[str, Any] = {
    "id": "e1",
    "object": "chat.completion",
    "created": 5,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Blue whales sing.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
}

Answer = Callable[[Peer, bytes], Awaitable[None]]


def reply(body: Any, status: str = "200 OK", content_type: str = "application/json", **headers: str) -> bytes:
    """One whole HTTP answer. body: bytes as they are, else JSON."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(raw)}"]
    if content_type:
        lines.append(f"content-type: {content_type}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


EVENT_STREAM = CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-type: text/event-stream\r\n\r\n")


async def send_stream(peer: Peer, *events: bytes, whole: bool = True) -> None:
    """An event stream, each event in a chunk and a write of its own; not whole: its end stays open."""
    await peer.send(EVENT_STREAM, *(chunk(event) for event in events))
    if whole:
        await peer.send(END)


async def sing(peer: Peer, request: bytes) -> None:
    """What an ordinary upstream answers, as asked."""
    if asked(request).get("stream"):
        await send_stream(peer, ROLE, *BLUE, STOP, USAGE, DONE)
    else:
        await peer.send(reply(REPLY))


def asked(request: bytes) -> dict[str, Any]:
    """The JSON body of a request."""
    body: dict[str, Any] = orjson.loads(request.partition(b"\r\n\r\n")[2])
    return body


def header(request: bytes, name: str) -> str | None:
    for line in request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]:
        key, _, value = line.partition(": ")
        if key.lower() == name:
            return value
    return None


def path_of(request: bytes) -> str:
    return request.split(b" ", 2)[1].decode()


@dataclass
class Fake:
    """An upstream under the test's control; all but `server` may be changed while it runs.

    listing: instead of the list of `models`. hold: answers to looks wait for it.
    """

    server: Stub
    models: list[str]
    health: bytes
    listing: bytes | None = None
    hold: asyncio.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.address.port}"

    @property
    def asked(self) -> list[bytes]:
        """The requests that were no looks at its health."""
        return [request for request in self.server.requests if request.startswith(b"POST")]

    @property
    def looks(self) -> list[str]:
        return [path_of(request) for request in self.server.requests if request.startswith(b"GET")]


NO_HEALTH = reply({"detail": "Not Found"}, "404 Not Found")


@contextlib.asynccontextmanager
async def fake_upstream(
    answer: Answer = sing, models: list[str] | None = None, health: bytes = NO_HEALTH
) -> AsyncIterator[Fake]:
    """answer: writes the answer to a POST."""

    async def script(peer: Peer) -> None:
        while (request := await peer.request()) is not None:
            if request.startswith(b"POST"):
                await answer(peer, request)
                continue
            if fake.hold is not None:
                await fake.hold.wait()
            is_list = path_of(request).partition("?")[0].endswith("/models")
            await peer.send((fake.listing or _listed(fake.models)) if is_list else fake.health)

    async with stub(script) as server:
        fake = Fake(server, ["m"] if models is None else models, health)
        yield fake


def _listed(models: list[str]) -> bytes:
    return reply({"object": "list", "data": [{"id": name, "object": "model"} for name in models]})


@contextlib.asynccontextmanager
async def gateway(fake: Fake, overrides: Mapping[str, str] | None = None) -> AsyncIterator[Served]:
    """Our server in front of it."""
    settings = {**QUIET, "engines.backend": "openai", "engines.openai.url": fake.url, **(overrides or {})}
    async with serve(settings) as served:
        yield served
