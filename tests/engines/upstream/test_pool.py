"""Connections between exchanges: reuse, expiry, and servers that close them at the worst moment."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from llm_runtime.core.errors import BackendError, BackendUnavailable
from llm_runtime.engines.upstream import Address, Limits, Upstream
from tests.engines.upstream.stubs import CHUNKED, OK, Peer, answer_all, chunk, stub, turns_until

PATIENT = Limits(idle_s=3600)
"""With it, nothing is closed just because it expired."""


async def get(upstream: Upstream, **options: object) -> bytes:
    exchange = upstream.request("GET", "/", **options)  # type: ignore[arg-type]
    await exchange.head()
    return await exchange.read_all()


async def test_connections_are_reused() -> None:
    async with stub(answer_all) as server, Upstream(server.address) as upstream:
        for _ in range(100):
            assert await get(upstream) == b"ok"
        await asyncio.gather(*(get(upstream) for _ in range(10)))
        await asyncio.gather(*(get(upstream) for _ in range(10)))
        assert server.num_connections == upstream.num_connects == 10
        assert upstream.num_retries == 0


async def test_request_goes_out_before_anybody_waits() -> None:
    arrived = asyncio.Event()

    async def script(peer: Peer) -> None:
        while await peer.request():
            arrived.set()
            await peer.send(OK)

    async with stub(script) as server, Upstream(server.address) as upstream, asyncio.timeout(2):
        exchange = upstream.request("GET", "/")
        await arrived.wait()
        assert await exchange.read() == b"ok"


@pytest.mark.parametrize("farewell", [b"connection: close\r\n", None], ids=["connection: close", "HTTP/1.0"])
async def test_one_request_per_connection(farewell: bytes | None) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        version, extra = (b"1.0", b"") if farewell is None else (b"1.1", farewell)
        await peer.send(b"HTTP/%s 200 OK\r\n%scontent-length: 2\r\n\r\nok" % (version, extra))
        await peer.closed()  # the client closes, although the server has not yet

    async with stub(script) as server, Upstream(server.address) as upstream, asyncio.timeout(5):
        for _ in range(20):
            assert await get(upstream) == b"ok"
        assert (server.num_connections, upstream.num_retries) == (20, 0)


async def test_server_that_closes_at_the_second_request_costs_nothing_but_a_retry() -> None:
    """What an idle connection looks like that is closed just when the next request goes out."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()  # and no answer

    async with stub(script) as server, Upstream(server.address) as upstream:
        for _ in range(50):
            assert await get(upstream) == b"ok"
        assert (upstream.num_retries, len(server.requests)) == (49, 99)


async def test_server_that_resets_at_the_second_request(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        peer.reset()

    for unix_path in (None, tmp_path / "s.sock"):
        async with stub(script, unix_path) as server, Upstream(server.address) as upstream:
            for _ in range(10):
                assert await get(upstream, same_process=lambda: True) == b"ok"
            assert upstream.num_retries == 9


async def test_server_that_closes_idle_connections_first() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        peer.close()

    async with stub(script) as server, Upstream(server.address) as upstream:
        for _ in range(20):
            assert await get(upstream) == b"ok"
            await turns_until(lambda: not server.num_open)
        assert server.num_connections == 20


async def test_f35_c_restarted_upstream_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    async with Upstream(Address(unix_path=str(path))) as upstream:
        for _ in range(3):
            async with stub(answer_all, path):
                assert await get(upstream) == b"ok"


async def test_fresh_connection_closed_without_a_byte_is_not_retried() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()

    async with stub(script) as server, Upstream(server.address) as upstream:
        exchange = upstream.request("GET", "/")
        with pytest.raises(BackendError, match="without an answer") as lost:
            await exchange.head()
        assert type(lost.value) is BackendError
        assert exchange.lost
        assert len(server.requests) == 1


async def dies_at_the_second(peer: Peer) -> None:
    """And at the first of every connection but the first."""
    if peer.number == 0:
        await peer.request()
        await peer.send(OK)
    await peer.request()


async def test_only_one_retry() -> None:
    async with stub(dies_at_the_second) as server, Upstream(server.address) as upstream:
        assert await get(upstream) == b"ok"
        with pytest.raises(BackendError, match="without an answer"):
            await get(upstream)
        assert len(server.requests) == 3


async def test_no_retry_when_the_engine_is_another_or_dead() -> None:
    async with stub(dies_at_the_second) as server, Upstream(server.address) as upstream:
        assert await get(upstream) == b"ok"
        exchange = upstream.request("GET", "/", same_process=lambda: False)
        with pytest.raises(BackendError, match="without an answer"):
            await exchange.head()
        assert exchange.lost
        assert (len(server.requests), upstream.num_retries) == (2, 0)


async def test_no_retry_after_the_first_byte() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(CHUNKED + chunk(b"data"))

    async with stub(script) as server, Upstream(server.address) as upstream:
        assert await get(upstream) == b"ok"
        with pytest.raises(BackendError, match="middle of its answer"):
            await get(upstream)
        assert (len(server.requests), upstream.num_retries) == (2, 0)


async def test_engine_that_died_of_the_request_is_not_called_unavailable() -> None:
    """It took the request and is gone: to say that nobody took it would invite to try elsewhere."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        server_gone.set()
        await until_closed.wait()

    server_gone, until_closed = asyncio.Event(), asyncio.Event()
    async with stub(script) as server:
        upstream = Upstream(server.address)
        assert await get(upstream) == b"ok"
        exchange = upstream.request("GET", "/", same_process=lambda: True)
        await server_gone.wait()
    # The stub is closed, with the request unanswered.
    async with upstream:
        with pytest.raises(BackendError) as lost:
            await exchange.head()
        assert type(lost.value) is BackendError
        assert exchange.lost


async def test_bytes_nobody_asked_for_end_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK + OK if peer.number == 0 else OK)
        if peer.number == 1:
            await peer.send(OK)
        if peer.number == 2:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nnew")
        await peer.closed()

    async with stub(script) as server, Upstream(server.address, limits=PATIENT) as upstream:
        assert await get(upstream) == b"ok"
        await turns_until(lambda: not server.num_open)
        assert await get(upstream) == b"ok"
        await turns_until(lambda: not server.num_open)
        assert await get(upstream) == b"ok"
        assert await get(upstream) == b"new"
        assert server.num_connections == 3


async def test_answer_before_the_request_was_sent_in_full_is_given_but_ends_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer._reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await peer.closed()

    async with stub(script) as server, Upstream(server.address, limits=PATIENT) as upstream:
        exchange = upstream.request("POST", "/", b"x" * 64_000_000)
        assert await exchange.read_all() == b"no"
        assert exchange.status == 413
        await turns_until(lambda: not server.num_open)


async def test_idle_connections_expire() -> None:
    limits = Limits(idle_s=0.05)
    async with stub(answer_all) as server, Upstream(server.address, limits=limits) as upstream:
        await asyncio.gather(*(get(upstream) for _ in range(5)))
        assert server.num_open == 5
        await turns_until(lambda: not server.num_open)
        assert await get(upstream) == b"ok"
        assert server.num_connections == 6


async def test_expired_connection_is_not_used_even_if_the_loop_was_too_busy_to_close_it() -> None:
    limits = Limits(idle_s=0.05)
    async with stub(answer_all) as server, Upstream(server.address, limits=limits) as upstream:
        assert await get(upstream) == b"ok"
        time.sleep(0.06)  # noqa: ASYNC251 - blocks the loop, which is the case
        assert await get(upstream) == b"ok"
        assert upstream.num_connects == 2


async def test_close_ends_everything() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 0:
            await peer.send(OK)
        await peer.closed()

    async with stub(script) as server, asyncio.timeout(5):
        upstream = Upstream(server.address)
        assert await get(upstream) == b"ok"
        busy = [upstream.request("GET", "/") for _ in range(2)]
        await turns_until(lambda: len(server.requests) == 2)
        connecting = upstream.request("GET", "/")
        await upstream.aclose()
        await upstream.aclose()
        for exchange in (*busy, connecting):
            assert exchange.ended
            with pytest.raises(BackendError):
                await exchange.head()
        with pytest.raises(BackendUnavailable):
            await get(upstream)
        await turns_until(lambda: not server.num_open)


async def test_f25_500_aborts_leave_nothing() -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(CHUNKED + chunk(b"data"))

    async with stub(script) as server, Upstream(server.address) as upstream, asyncio.timeout(20):
        for number in range(500):
            exchange = upstream.request("POST", "/", b"{}")
            if number % 3 == 1:
                await exchange.head()
            elif number % 3 == 2:
                assert await exchange.read() == b"data"
            exchange.abort()
        await turns_until(lambda: not (server.num_open or upstream._pool._open or upstream._pool._attempts))
        assert upstream.num_retries == 0
