"""The short way for a chunk that comes alone, against the parser: whatever the sizes, the spelling of the
lengths and the cuts, a reader that has things pushed at it gets the same bytes, and the connection ends up
the same."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.errors import BackendProtocolError
from llm_runtime.core.sink import CallSink
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.engines.upstream.protocol import MAX_CHUNK_BYTES, Connection, Limits, lone_chunk

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
PAYLOADS = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.sampled_from([b"\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n", b"data: x\n\n", b"y" * 300]),
)
SPELLINGS = st.sampled_from([b"%x", b"%X", b"%04x", b"%x;ext=1"])


class Home:
    """A pool of one connection."""

    limits = Limits()

    def __init__(self) -> None:
        self.num_released = 0

    def opened(self, connection: Connection) -> None: ...

    def released(self, connection: Connection) -> None:
        self.num_released += 1

    def gone(self, connection: Connection) -> None: ...

    def retry(self, exchange: Exchange) -> bool:
        return False


class Transport:
    """What is sent goes nowhere."""

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


def connected(home: Home) -> tuple[Connection, Exchange]:
    connection = Connection(home)
    transport: Any = Transport()
    connection.connection_made(transport)
    exchange = Exchange(b"", None)
    connection.send(exchange)
    return connection, exchange


async def read(reads: list[bytes], *, pushed: bool) -> tuple[bytes, int]:
    """The body as its reader gets it, and how often the connection was given back for another request."""
    home = Home()
    connection, exchange = connected(home)
    parts: list[bytes] = []

    def push(data: bytes, _: bytes | None) -> bool:
        parts.append(data)
        return True

    async def listen() -> None:
        assert await exchange.head()
        while (part := await exchange.read(CallSink(push) if pushed else None)) is not None:
            parts.append(part)

    reader = asyncio.ensure_future(listen())
    for data in reads:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        connection.data_received(data)
    await asyncio.wait_for(reader, 2)
    return b"".join(parts), home.num_released


@given(
    chunks=st.lists(st.tuples(PAYLOADS, SPELLINGS), max_size=8),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
    split_at_chunks=st.booleans(),
)
def test_however_it_is_cut_and_spelt(
    chunks: list[tuple[bytes, bytes]], cuts: list[int], split_at_chunks: bool
) -> None:
    framed = [spelling % len(payload) + b"\r\n" + payload + b"\r\n" for payload, spelling in chunks]
    reads = [HEAD, *framed, LAST]
    if not split_at_chunks:
        wire = b"".join(reads)
        bounds = sorted({0, len(wire), *(cut % len(wire) for cut in cuts)})
        reads = [wire[start:end] for start, end in pairwise(bounds)]
    whole = b"".join(payload for payload, _ in chunks)
    assert asyncio.run(read(reads, pushed=True)) == (whole, 1)
    assert asyncio.run(read(reads, pushed=False)) == (whole, 1)


async def test_a_chunk_that_comes_alone_is_pushed_unparsed() -> None:
    connection, exchange = connected(Home())
    parser: Any = connection._parser
    fed: list[bytes] = []

    class Watched:
        def feed_data(self, data: bytes) -> None:
            fed.append(data)
            parser.feed_data(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(parser, name)

    watched: Any = Watched()
    connection._parser = watched
    pushed: list[bytes] = []

    chunks: list[bytes | None] = []

    def push(data: bytes, chunk: bytes | None) -> bool:
        pushed.append(data)
        chunks.append(chunk)
        return True

    connection.data_received(HEAD)
    reader = asyncio.ensure_future(exchange.read(CallSink(push)))
    await asyncio.sleep(0)
    for data in (b"1\r\na\r\n", b"2\r\nbc\r\n", b"1\r\nd\r\n1\r\ne\r\n", b"1\r\nf\r\n"):
        connection.data_received(data)
    assert pushed == [b"a", b"bc", b"de", b"f"]
    assert chunks == [None, b"2\r\nbc\r\n", None, b"1\r\nf\r\n"]
    assert fed == [HEAD, b"1\r\na\r\n", b"1\r\nd\r\n1\r\ne\r\n"]  # the first has to be learnt from
    connection.data_received(LAST)
    assert await reader is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\r\n", b"2\r\na\r\n", b"1\r\na\r\n1", b"1\r\na\n\n", b"+1\r\na\r\n", b"0x1\r\na\r\n", b"1_0\r\n",
     b" 1\r\na\r\n", b"0\r\n\r\n", b"1;e\r\na\r\n", b"1\r\nab\r\n", b"0000001\r\na\r\n", b"g\r\na\r\n",
     b"A\r\n0123456789\r\n", b"004\r\n\r\n\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_lone_chunk_is_the_parsers(data: bytes) -> None:
    assert lone_chunk(data) is None


def test_the_inside_of_a_lone_chunk() -> None:
    assert lone_chunk(b"a\r\n0123456789\r\n") == b"0123456789"
    assert lone_chunk(b"4\r\n\r\n\r\n\r\n") == b"\r\n\r\n"


def test_a_lone_chunk_of_any_length_is_known_by_its_head() -> None:
    for num_bytes in range(1, 5000):
        inside = b"x" * num_bytes
        chunk = b"%x\r\n%b\r\n" % (num_bytes, inside)
        assert lone_chunk(chunk) == (inside if len(chunk) <= MAX_CHUNK_BYTES else None)


async def test_an_answer_that_is_too_large_is_still_one() -> None:
    home = Home()
    home.limits = Limits(max_head_bytes=100, max_body_bytes=1000)
    connection, exchange = connected(home)
    connection.data_received(HEAD)
    reader = asyncio.ensure_future(exchange.read(CallSink(lambda data, _chunk: True)))
    await asyncio.sleep(0)
    for _ in range(20):
        connection.data_received(b"64\r\n%b\r\n" % (b"x" * 100))
    assert await reader == b"x" * 100  # had arrived with what was too much
    with pytest.raises(BackendProtocolError, match="too large"):
        await exchange.read()
