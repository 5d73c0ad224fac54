"""One exchange: nobody there, pokes, aborts, callbacks, back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_runtime.core.errors import BackendError, BackendUnavailable
from llm_runtime.engines.upstream import Address, Limits, Upstream
from llm_runtime.engines.upstream.exchange import MAX_READ_BYTES
from tests.engines.upstream.stubs import (
    CHUNKED,
    END,
    OK,
    Peer,
    answer_all,
    chunk,
    stub,
    turns_until,
)
from tests.engines.upstream.talking import talking, whole


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


async def test_data_comes_first_and_a_poke_is_answered_after_it() -> None:
    """It must not be swallowed: the data may be half an event, of which nobody hears."""
    async with talking(answer_all) as (_, upstream):
        exchange = upstream.request("GET", "/")
        assert await exchange.head()
        exchange.poke()
        assert await exchange.read() == b"ok"
        assert await exchange.read() == b""
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
        assert largest < 2 * MAX_READ_BYTES, "a slow reader is handed portions"


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


async def test_f38_e_proxy_variables_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with talking(answer_all) as (_, upstream):
        assert await whole(upstream.request("GET", "/")) == b"ok"
