"""One exchange: what every kind of answer, and every kind of trouble, looks like to the caller."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from llm_runtime.core.errors import BackendError, BackendProtocolError, BackendUnavailable
from llm_runtime.engines.upstream import Address, Exchange, Limits, Upstream
from tests.engines.upstream.stubs import (
    CHUNKED,
    END,
    OK,
    Peer,
    Script,
    Stub,
    answer_all,
    chunk,
    stub,
    turns_until,
)


@contextlib.asynccontextmanager
async def talking(script: Script, limits: Limits | None = None) -> AsyncIterator[tuple[Stub, Upstream]]:
    async with stub(script) as server, Upstream(server.address, limits=limits or Limits()) as upstream:
        yield server, upstream


async def whole(exchange: Exchange) -> bytes:
    assert await exchange.head()
    return await exchange.read_all()


async def collect(exchange: Exchange, into: list[bytes]) -> None:
    while (part := await exchange.read()) is not None:
        into.append(part)


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


@pytest.mark.parametrize("kind", ["refused port", "no socket file"])
async def test_nobody_there_is_told_at_once(kind: str, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = Address(host="127.0.0.1", port=closed.getsockname()[1])
        if kind == "no socket file":
            address = Address(unix_path=str(tmp_path / "none.sock"))
        async with Upstream(address) as upstream, asyncio.timeout(2):
            exchange = upstream.request("GET", "/")
            with pytest.raises(BackendUnavailable) as failed:
                await exchange.head()
            assert str(tmp_path) not in failed.value.message
            assert isinstance(failed.value.__cause__, OSError)
            assert not exchange.lost


@pytest.fixture
def deaf_address() -> Iterator[Address]:
    """A port whose queue of connections is full: connecting neither succeeds nor fails."""
    with socket.socket() as full, contextlib.ExitStack() as fillers:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield Address(host="127.0.0.1", port=full.getsockname()[1])


async def test_connecting_has_its_own_time_limit(deaf_address: Address) -> None:
    async with Upstream(deaf_address, limits=Limits(connect_timeout_s=0.1)) as upstream:
        with pytest.raises(BackendUnavailable, match="in time"):
            await upstream.request("GET", "/").head()


async def test_poke_and_abort_while_connecting(deaf_address: Address) -> None:
    async with Upstream(deaf_address) as upstream:
        exchange = upstream.request("GET", "/")
        waiting = asyncio.create_task(exchange.head())
        await asyncio.sleep(0)
        exchange.poke()
        assert await waiting is False
        exchange.abort()
        with pytest.raises(BackendError, match="given up"):
            await exchange.head()


async def test_poke_ends_a_pending_or_else_the_next_wait() -> None:
    async with talking(Peer.closed) as (_, upstream):
        exchange = upstream.request("GET", "/")
        for wait, sentinel in ((exchange.head, False), (exchange.read, b"")):
            waiting: asyncio.Task[object] = asyncio.create_task(wait())
            await asyncio.sleep(0)
            exchange.poke()
            assert await waiting == sentinel
            exchange.poke()
            exchange.poke()
            assert await wait() == sentinel
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            assert not waiting.done()  # two pokes were one
            waiting.cancel()


async def test_data_counts_as_the_answer_to_a_poke() -> None:
    async with talking(answer_all) as (_, upstream):
        exchange = upstream.request("GET", "/")
        assert await exchange.head()
        exchange.poke()
        assert await exchange.read() == b"ok"
        assert await exchange.read() is None


async def test_abort_closes_the_connection_at_once() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"data"))
        await peer.closed()
        gone.set()

    async with talking(script) as (_, upstream), asyncio.timeout(2):
        exchange = upstream.request("POST", "/", b"{}")
        assert await exchange.read() == b"data"
        exchange.abort()
        exchange.abort()
        await gone.wait()
        with pytest.raises(BackendError, match="given up"):
            await exchange.read()
        assert not exchange.lost


async def test_abort_wakes_a_pending_read() -> None:
    async with talking(Peer.closed) as (_, upstream):
        exchange = upstream.request("GET", "/")
        reading = asyncio.create_task(exchange.read())
        await asyncio.sleep(0)
        exchange.abort()
        with pytest.raises(BackendError):
            await reading


async def test_cancelled_read_can_be_followed_by_another() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await go_on.wait()
        await peer.send(OK)

    async with talking(script) as (_, upstream):
        exchange = upstream.request("GET", "/")
        reading = asyncio.create_task(exchange.read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        go_on.set()
        assert await exchange.read() == b"ok"


async def test_callbacks_come_once_each_even_if_nobody_reads() -> None:
    seen: list[str] = []
    done = asyncio.Event()

    def closed() -> None:
        seen.append(f"closed {exchange.ended}")
        done.set()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, chunk(b"a"), chunk(b"b"), END)
        await peer.closed()

    async with talking(script) as (_, upstream):
        exchange = upstream.request("GET", "/")
        assert not exchange.has_started
        exchange.on_first_byte = lambda: seen.append(f"first {exchange.has_started}")
        exchange.on_closed = closed
        await done.wait()
        exchange.abort()
        assert seen == ["first True", "closed True"]
        assert await exchange.read_all() == b"ab"


@pytest.mark.parametrize("how", ["refused", "aborted", "lost"])
async def test_closed_is_told_for_every_end(how: str) -> None:
    done = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        if how == "aborted":
            await peer.closed()

    async with stub(script) as server:
        address = Address(unix_path="/nonexistent.sock") if how == "refused" else server.address
        async with Upstream(address) as upstream, asyncio.timeout(2):
            exchange = upstream.request("GET", "/")
            exchange.on_closed = done.set
            if how == "aborted":
                exchange.abort()
            await done.wait()
            assert exchange.ended
            with pytest.raises(BackendError):
                await exchange.read()


async def test_unread_body_stops_the_reading() -> None:
    total = 32 * 1024 * 1024
    sent_all = False

    async def script(peer: Peer) -> None:
        nonlocal sent_all
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(total // 65536):
            await peer.send(chunk(b"x" * 65536))
        sent_all = True
        await peer.send(END)

    limits = Limits(buffer_bytes=256 * 1024)
    async with talking(script, limits) as (_, upstream):
        exchange = upstream.request("GET", "/")
        assert await exchange.head()
        await turns_until(lambda: exchange.num_buffered > limits.buffer_bytes)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not sent_all
        assert exchange.num_buffered < 1024 * 1024
        got, largest = 0, 0
        while (part := await exchange.read()) is not None:
            got += len(part)
            largest = max(largest, len(part))
        assert got == total
        assert largest < 1024 * 1024


async def test_abort_of_a_paused_exchange_closes_its_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        with contextlib.suppress(ConnectionError):
            while True:
                await peer.send(chunk(b"x" * 65536))
                if peer._writer.is_closing():
                    return

    async with talking(script) as (server, upstream), asyncio.timeout(5):
        exchange = upstream.request("GET", "/")
        await turns_until(lambda: exchange.num_buffered > Limits().buffer_bytes)
        exchange.abort()
        await turns_until(lambda: not server.num_open)


@pytest.mark.parametrize(
    ("path", "headers"),
    [("no-slash", {}), ("/a b", {}), ("/a\r\nx: y", {}), ("/", {"x": "y\r\nz: 1"}), ("/", {"x\n": "y"})],
)
async def test_line_ends_cannot_be_smuggled_in(path: str, headers: dict[str, str]) -> None:
    async with Upstream(Address(host="127.0.0.1", port=1)) as upstream:
        with pytest.raises(ValueError, match=r"not a request path|must not contain"):
            upstream.request("GET", path, headers=headers)


async def test_proxy_variables_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with talking(answer_all) as (_, upstream):
        assert await whole(upstream.request("GET", "/")) == b"ok"


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
async def test_localhost_is_found_on_either_family(family: socket.AddressFamily, host: str) -> None:
    known = await asyncio.get_running_loop().getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)
    if family not in [found[0] for found in known]:
        pytest.skip("localhost has no such address here")
    listening = socket.socket(family)
    listening.bind((host, 0))
    served = Stub(answer_all)
    async with await asyncio.start_server(served.accept, sock=listening) as server:
        port = listening.getsockname()[1]
        async with Upstream(Address(host="localhost", port=port)) as upstream:
            assert await whole(upstream.request("GET", "/")) == b"ok"
            server.close()
        await served.end()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_tls_with_and_without_a_trusted_certificate(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, [*make, *names], check=True, capture_output=True)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificate, key)
    served = Stub(answer_all)
    async with await asyncio.start_server(served.accept, "localhost", 0, ssl=ours) as server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with Upstream(Address.parse(url, trusting)) as upstream:
            assert await whole(upstream.request("GET", "/")) == b"ok"
        async with Upstream(Address.parse(url)) as upstream:
            with pytest.raises(BackendUnavailable) as refused:
                await upstream.request("GET", "/").head()
            assert isinstance(refused.value.__cause__, ssl.SSLError)
        server.close()
        await served.end()


@pytest.mark.parametrize(
    ("url", "host_header"),
    [
        ("http://127.0.0.1:8000/v1", "127.0.0.1:8000"),
        ("http://example.com", "example.com"),
        ("https://example.com:8443", "example.com:8443"),
        ("https://example.com", "example.com"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("unix:///run/engine.sock", "localhost"),
    ],
)
def test_addresses(url: str, host_header: str) -> None:
    address = Address.parse(url)
    assert address.host_header == host_header
    assert (address.ssl_context is not None) == url.startswith("https")
    assert address.unix_path == (url.removeprefix("unix://") if url.startswith("unix") else None)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://", "unix://"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="not an http"):
        Address.parse(url)
