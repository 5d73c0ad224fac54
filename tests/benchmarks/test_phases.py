"""The load against servers of known behaviour, in one loop."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from benchmarks.overhead import phases
from benchmarks.overhead.phase import Phase, Result
from tests.benchmarks.stubs import serving, stubbed

GAP_S = 0.005
USUAL = Phase("streams", "127.0.0.1", 0, "stub", {}, window_s=0.3, warmup_s=0.05, seed=1, salt="t",
              concurrency=4, num_tokens=8, gap_s=GAP_S, rate_per_s=40.0)  # fmt: skip


class Refuses(asyncio.Protocol):
    """Answers whatever comes with one answer; `close` ends the connection after it."""

    def __init__(self, answer: bytes, *, close: bool = False) -> None:
        self._answer = answer
        self._close = close

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._answer)
        if self._close:
            self._transport.close()


def is_whole(result: Result) -> bool:
    return not result.failures and not result.num_retries


async def test_streams_are_kept_going_and_counted_within_the_window() -> None:
    async with stubbed() as watched:
        stub, port = watched.stub, watched.port
        result = await phases.run(replace(USUAL, port=port))
        assert is_whole(result)
        assert not stub.streams
        assert stub.num_requests == result.num_sent > 4
    assert 0 < result.num_tokens <= stub.num_tokens
    assert result.quantiles["delay_s"]["n"] == result.num_tokens
    assert result.num_connects == 4
    assert 0 < result.num_streams <= result.num_sent


async def test_arrivals_do_not_wait_for_each_other() -> None:
    async with stubbed() as watched:
        stub, port = watched.stub, watched.port
        stub.gap_s = 0.1  # a stream of 8 tokens lasts longer than the window
        result = await phases.run(replace(USUAL, kind="poisson", port=port, gap_s=0.001))
        assert is_whole(result)
        assert stub.num_requests == result.num_sent
    assert result.num_sent > 4
    assert len(result.ttfts_s) > 2
    assert min(result.ttfts_s) >= 0.1


async def test_the_same_seed_gives_the_same_arrivals() -> None:
    async with stubbed() as watched:
        port = watched.port
        first = await phases.run(replace(USUAL, kind="poisson", port=port))
        again = await phases.run(replace(USUAL, kind="poisson", port=port))
        other = await phases.run(replace(USUAL, kind="poisson", port=port, seed=2, rate_per_s=80.0))
    assert first.num_sent == again.num_sent
    assert other.num_sent != first.num_sent


async def test_plain_requests_follow_each_other_on_their_connections() -> None:
    async with stubbed() as watched:
        stub, port = watched.stub, watched.port
        result = await phases.run(replace(USUAL, kind="plain", port=port))
        assert is_whole(result)
        assert result.num_connects == 4
        assert result.num_plain > 4
        assert stub.num_requests == result.num_sent >= result.num_plain


async def test_plain_requests_at_one_rate() -> None:
    async with stubbed() as watched:
        paced = replace(USUAL, kind="paced", port=watched.port, rate_per_s=100.0, window_s=0.5)
        result = await phases.run(paced)
    assert is_whole(result)
    assert 25 <= result.num_plain <= 80
    assert result.num_streams == 0


async def test_every_refusal_is_counted() -> None:
    answer = b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n{}"
    async with serving(lambda: Refuses(answer)) as port:
        result = await phases.run(replace(USUAL, port=port, window_s=0.05))
    assert result.failures == {"status 503": result.num_sent}


async def test_a_connection_lost_within_an_answer_is_a_failure_and_not_retried() -> None:
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serving(lambda: Refuses(answer, close=True)) as port:
        result = await phases.run(replace(USUAL, kind="poisson", port=port, window_s=0.1, rate_per_s=50.0))
    assert result.num_sent > 0
    assert result.failures == {"connection lost": result.num_sent}
    assert result.num_retries == 0


async def test_an_idle_connection_that_was_closed_is_replaced_once() -> None:
    """A server that ends each connection after one answer without saying so beforehand."""
    body = b'{"usage": {"completion_tokens": 64}}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    async with serving(lambda: Refuses(answer, close=True)) as port:
        result = await phases.run(replace(USUAL, kind="plain", port=port, window_s=0.2))
    assert not result.failures
    assert result.num_plain > 0
    assert result.num_connects > 4


async def test_stalled_readers_hold_their_streams_and_their_end_is_no_failure() -> None:
    async with stubbed() as watched:
        stub, port = watched.stub, watched.port
        stub.gap_s = 0.0
        running = asyncio.create_task(
            phases.run(replace(USUAL, kind="stalled", port=port, num_tokens=1_000_000, window_s=0.5))
        )
        await watched.until(lambda: watched.num_paused == 4)
        written = stub.num_tokens
        assert len(stub.streams) == 4
        result = await running
        assert not result.failures
        assert stub.num_tokens == written
        await watched.until(lambda: watched.num_lost == 4)
        assert not stub.streams


async def test_stalled_readers_that_are_refused_are_failures() -> None:
    answer = b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n{}"
    async with serving(lambda: Refuses(answer, close=True)) as port:
        result = await phases.run(replace(USUAL, kind="stalled", port=port, window_s=0.2))
    assert result.failures == {"status 503": 4, "never began": 4}
