"""What a request was made of goes with its end, not with the collector's next walk: for that, nothing of it
may lead back to itself. A walk stops every stream for as long as it takes, and what waits for it is memory
that the next request would have had warm."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engines.openai.upstreams import Answer, fake_upstream, gateway, reply, send_stream, sing
from tests.engines.upstream.stubs import Peer
from tests.support.http import ask, chat_body, connected, post
from tests.support.server import Served, serve
from tests.wire.builders import ROLE, text

NUM = 8
"""Requests of a kind; what is left once (a connection, a first use of something) is not counted."""


@contextmanager
def leftovers() -> Iterator[Counter[str]]:
    """What of ours was left to the collector inside the block, by type."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        kinds = (type(thing) for thing in gc.garbage)
        found.update(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds if _is_ours(kind))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()


async def left_by(served: Served, once: Callable[[], Awaitable[object]]) -> Counter[str]:
    """What is left of NUM requests of a kind, after one that is not counted."""
    await once()
    await served.at_rest()
    with leftovers() as found:
        for _ in range(NUM):
            await once()
        await served.at_rest()
    return found


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "llm_runtime"


async def cut(peer: Peer, request: bytes) -> None:
    """A stream that breaks off."""
    await send_stream(peer, ROLE, text("Blue "), whole=False)
    peer.close()


async def refuse(peer: Peer, request: bytes) -> None:
    await peer.send(reply({"error": {"message": "no"}}, "400 Bad Request"))


async def fails(peer: Peer, request: bytes) -> None:
    await send_stream(peer, ROLE, text("a"), b'data: {"error":{"message":"broke"}}\n\n', whole=False)


STREAM = post(chat_body("m", stream=True))
WITH_USAGE = post(chat_body("m", stream=True, stream_options={"include_usage": True}))
TOLD = post(chat_body("m", stream=True), headers={"x-server-timing": "stream"})
PLAIN = post(chat_body("m"))
UNKNOWN = post(chat_body("nobody"))
BAD = post(b"{")


@pytest.mark.parametrize(
    ("answer", "request_"),
    [
        (sing, STREAM),
        (sing, WITH_USAGE),
        (sing, TOLD),
        (sing, PLAIN),
        (sing, UNKNOWN),
        (sing, BAD),
        (cut, STREAM),
        (fails, STREAM),
        (refuse, STREAM),
        (refuse, PLAIN),
    ],
)
async def test_answered_by_an_upstream(answer: Answer, request_: bytes) -> None:
    async with fake_upstream(answer) as fake, gateway(fake) as served:
        assert not await left_by(served, lambda: ask(served.port, request_))


@pytest.mark.parametrize("stream", [False, True])
async def test_answered_by_an_engine_of_ours(stream: bool) -> None:
    async with serve() as served:
        body: Any = post(chat_body(served.model, stream=stream, max_tokens=4))
        assert not await left_by(served, lambda: ask(served.port, body))


async def test_left_by_its_client() -> None:
    hold = asyncio.Event()

    async def begin(peer: Peer, request: bytes) -> None:
        await send_stream(peer, ROLE, text("Blue "), whole=False)
        await hold.wait()

    async with fake_upstream(begin) as fake, gateway(fake) as served:

        async def leave() -> None:
            async with connected(served.port) as client:
                await client.send(STREAM)
                await client.until(b"Blue ")

        found = await left_by(served, leave)
        hold.set()
        assert not found
