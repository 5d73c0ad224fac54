"""One exchange: what every kind of answer, and every kind of trouble, looks like to the caller."""

from __future__ import annotations

import asyncio

import pytest

from llm_runtime.core.errors import BackendError, BackendProtocolError
from llm_runtime.engines.upstream import Limits, Upstream
from tests.engines.upstream.stubs import (
    CHUNKED,
    END,
    Peer,
    chunk,
    stub,
)
from tests.engines.upstream.talking import collect, talking, whole


async def test_request_as_sent_and_answer_as_read() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 201 Created\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 5\r\n\r\nhello")
        await peer.closed()

    async with stub(script) as server:
        headers = {"authorization": "Bearer k"}
        async with Upstream(server.address, headers) as upstream:
            exchange = upstream.request("POST", "/v1/x?y=1", b'{"a":1}', {"x-request-id": "r1"})
            assert await whole(exchange) == b"hello"
            assert (exchange.status, exchange.headers[b"x-a"]) == (201, b"1, 2")
            assert (exchange.ended, exchange.lost) == (True, False)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/x?y=1 HTTP/1.1"
    assert body == b'{"a":1}'
    assert set(lines[1:]) == {
        f"host: 127.0.0.1:{server.address.port}",
        "accept: */*",
        "accept-encoding: identity",
        "authorization: Bearer k",
        "x-request-id: r1",
        "content-type: application/json",
        "content-length: 7",
    }


@pytest.mark.parametrize(
    "status", [b"302 Found\r\nlocation: http://example.com/", b"502 Bad Gateway", b"200 OK"]
)
async def test_any_status_and_content_is_handed_over_as_it_is(status: bytes) -> None:
    """HTML pages and redirects are for the adapter to judge; nothing is followed."""
    page = b"<html>nginx</html>"

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(page), page))
        await peer.closed()

    async with talking(script) as (server, upstream):
        exchange = upstream.request("GET", "/")
        assert await whole(exchange) == page
        assert exchange.status == int(status[:3])
        assert len(server.requests) == 1


async def test_stream_arrives_as_it_comes() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await go_on.wait()
        await peer.send(chunk(b"one"))
        go_on.clear()
        await go_on.wait()
        await peer.send(chunk(b"two") + chunk(b"three") + END)

    async with talking(script) as (_, upstream):
        exchange = upstream.request("POST", "/", b"{}")
        assert await exchange.head()
        assert exchange.headers == {b"transfer-encoding": b"chunked"}
        go_on.set()
        assert await exchange.read() == b"one"
        assert not exchange.ended
        go_on.set()
        assert await exchange.read() == b"twothree"  # one read for all that one wake-up brought
        assert exchange.ended
        assert await exchange.read() is None
        assert await exchange.read() is None


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + chunk(b"data: a\n\n") + chunk(b"data: [DONE]\n\n") + END,
        b"HTTP/1.1 200 OK\r\ncontent-length: 23\r\n\r\ndata: a\n\ndata: [DONE]\n\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\ncontent-length: 23\r\n\r\ndata: a\n\ndata: [DONE]\n\n",
        CHUNKED + b"17;extension=1\r\ndata: a\n\ndata: [DONE]\n\n\r\n0\r\ntrailer: 1\r\n\r\n",
    ],
    ids=["chunked", "sized", "interim", "extensions and trailers"],
)
@pytest.mark.parametrize("piece", [1, 7, 10_000])
async def test_answer_in_pieces_of_any_size(answer: bytes, piece: int) -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(*(answer[at : at + piece] for at in range(0, len(answer), piece)))

    async with talking(script) as (server, upstream):
        for _ in range(2):
            exchange = upstream.request("GET", "/")
            assert await whole(exchange) == b"data: a\n\ndata: [DONE]\n\n"
            assert (exchange.status, b"link" in exchange.headers) == (200, False)
        assert server.num_connections == 1


@pytest.mark.parametrize("head", [b"204 No Content", b"304 Not Modified", b"200 OK\r\ncontent-length: 0"])
async def test_answer_without_body(head: bytes) -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(b"HTTP/1.1 %s\r\n\r\n" % head)

    async with talking(script) as (server, upstream):
        for _ in range(2):
            assert await whole(upstream.request("GET", "/")) == b""
        assert server.num_connections == 1


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_body_without_length_ends_with_the_connection(version: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/%s 200 OK\r\n\r\n" % version, b"part", b"part")

    async with talking(script) as (_, upstream):
        exchange = upstream.request("GET", "/")
        assert await whole(exchange) == b"partpart"
        assert not exchange.lost


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + chunk(b"data"),
        CHUNKED + chunk(b"data") + b"5\r\nhal",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\ndata",
    ],
    ids=["no last chunk", "half a chunk", "sized"],
)
async def test_end_in_mid_body_is_an_error_after_what_had_arrived(answer: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    async with talking(script) as (_, upstream):
        exchange = upstream.request("GET", "/")
        assert await exchange.head()
        got: list[bytes] = []
        with pytest.raises(BackendProtocolError, match="middle of its answer"):
            await collect(exchange, got)
        assert b"".join(got).startswith(b"data")
        assert exchange.lost
        with pytest.raises(BackendProtocolError):
            await exchange.read()


async def test_end_in_mid_head_is_an_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncont")

    async with talking(script) as (_, upstream):
        exchange = upstream.request("GET", "/")
        with pytest.raises(BackendProtocolError):
            await exchange.head()
        assert exchange.lost


async def test_reset_in_mid_body_is_a_lost_connection() -> None:
    read_it = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"data"))
        await read_it.wait()
        peer.reset()

    async with talking(script) as (_, upstream):
        exchange = upstream.request("GET", "/")
        assert await exchange.read() == b"data"
        read_it.set()
        with pytest.raises(BackendError) as lost:
            await exchange.read()
        assert type(lost.value) is BackendError
        assert exchange.lost


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01\x00\x02\x02\x50",
        b"HTTP/1.1 abc OK\r\n\r\n",
        CHUNKED + b"zz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
    ],
)
async def test_what_is_not_http_is_a_protocol_error(answer: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.closed()

    async with talking(script) as (server, upstream):
        exchange = upstream.request("GET", "/")
        with pytest.raises(BackendProtocolError, match="not valid HTTP"):
            await whole(exchange)
        assert (exchange.ended, exchange.lost) == (True, False)
        assert len(server.requests) == 1


async def test_endless_head_is_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n", *[b"x: " + b"y" * 1000 + b"\r\n"] * 100)
        await peer.closed()

    async with talking(script) as (_, upstream):
        with pytest.raises(BackendProtocolError, match=r"head .* too large"):
            await upstream.request("GET", "/").head()


async def test_endless_body_is_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, *[chunk(b"y" * 10_000)] * 100)
        await peer.closed()

    async with talking(script, Limits(max_body_bytes=500_000)) as (_, upstream):
        with pytest.raises(BackendProtocolError, match="answer is too large"):
            await whole(upstream.request("GET", "/"))
