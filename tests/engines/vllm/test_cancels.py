"""`AbortWatch` against servers whose answers the test gives: what counts as a confirmed cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import orjson
import pytest

from llm_runtime.core.clock import SystemClock
from llm_runtime.core.lease import Lease, LeaseState
from llm_runtime.engines.upstream import Exchange, Upstream
from llm_runtime.engines.vllm.cancels import ABORT_PATH, NUM_ROUND_TRIPS, AbortWatch
from tests.engines.upstream.stubs import CHUNKED, OK, Peer, Stub, chunk, stub, turns_until

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"
FAILED = b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"


@dataclass
class Server:
    """Answers the abort call and /health as told; a generation never ends by itself.

    gate: answers wait for it. events: what happened, in order.
    """

    abort_answers: list[bytes] = field(default_factory=lambda: [OK])
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    async def script(self, peer: Peer) -> None:
        while request := await peer.request():
            if request.startswith(b"POST " + ABORT_PATH.encode()):
                names = orjson.loads(request.partition(b"\r\n\r\n")[2])["request_ids"]
                self.events.append(f"abort {' '.join(names)}")
                await self.gate.wait()
                await peer.send(
                    self.abort_answers.pop(0) if len(self.abort_answers) > 1 else self.abort_answers[0]
                )
            elif request.startswith(b"GET /health"):
                self.events.append("health")
                await self.gate.wait()
                await peer.send(OK)
            else:
                await peer.send(CHUNKED + chunk(b"data: {}\n\n"))
                await peer.closed()
                self.events.append("closed")
                return


@dataclass
class Rig:
    server: Server
    upstream: Upstream
    watch: AbortWatch
    stub: Stub

    async def running(self) -> Exchange:
        """A request that the server is answering."""
        exchange = self.upstream.request("POST", "/v1/chat/completions", b"{}")
        await exchange.head()
        return exchange


@asynccontextmanager
async def rig(server: Server) -> AsyncIterator[Rig]:
    async with stub(server.script) as it, Upstream(it.address) as upstream:
        watch = AbortWatch(upstream, SystemClock())
        task = asyncio.create_task(watch.run())
        try:
            yield Rig(server, upstream, watch, it)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def lease(name: str = "r1") -> Lease:
    return Lease(name, "replica", 1, 0.0, lambda _: None)


async def test_the_connection_is_closed_and_the_abort_call_frees_the_lease() -> None:
    async with rig(Server()) as it:
        it.server.gate.clear()
        granted = lease()
        it.watch.cancel(("chatcmpl-r1",), await it.running(), granted)
        assert granted.state is LeaseState.CANCELLING
        await turns_until(lambda: len(it.server.events) == 2)
        assert sorted(it.server.events) == ["abort chatcmpl-r1", "closed"]
        assert granted.held, "nothing has been confirmed yet"
        it.server.gate.set()
        await turns_until(lambda: not granted.held)
        assert not granted.held


async def test_one_call_for_all_that_wait_and_a_later_one_for_those_that_came_meanwhile() -> None:
    async with rig(Server()) as it:
        it.server.gate.clear()
        first, second, third = lease("1"), lease("2"), lease("3")
        exchanges = [await it.running() for _ in range(3)]
        it.watch.cancel(("a",), exchanges[0], first)
        it.watch.cancel(("b-0", "b-1"), exchanges[1], second)
        await turns_until(lambda: any(event.startswith("abort") for event in it.server.events))
        it.watch.cancel(("c",), exchanges[2], third)
        it.server.gate.set()
        await turns_until(lambda: not third.held)
        aborts = [event for event in it.server.events if event.startswith("abort")]
        assert aborts == ["abort a b-0 b-1", "abort c"], "the last was closed after the first call"
        assert not first.held
        assert not second.held


@pytest.mark.parametrize("refusal", [NOT_FOUND, FORBIDDEN])
async def test_without_the_abort_call_round_trips_after_the_close_free_the_lease(refusal: bytes) -> None:
    async with rig(Server(abort_answers=[refusal])) as it:
        for _ in range(2):
            granted = lease()
            it.watch.cancel(("chatcmpl-r1",), await it.running(), granted)
            await turns_until(lambda granted=granted: not granted.held)  # type: ignore[misc]
            assert not granted.held
        calls = [event for event in it.server.events if event != "closed"]
        assert calls == ["abort chatcmpl-r1", *["health"] * 2 * NUM_ROUND_TRIPS], (
            "it is not asked again for what it lacks"
        )


async def test_a_request_whose_name_is_not_known_is_free_after_round_trips() -> None:
    async with rig(Server()) as it:
        granted, named = lease("1"), lease("2")
        exchanges = [await it.running() for _ in range(2)]
        it.watch.cancel((), exchanges[0], granted)
        it.watch.cancel(("chatcmpl-r1",), exchanges[1], named)
        await turns_until(lambda: not granted.held)
        assert not granted.held
        assert not named.held
        calls = [event for event in it.server.events if event != "closed"]
        assert calls == ["abort chatcmpl-r1", *["health"] * NUM_ROUND_TRIPS]


async def test_a_failed_abort_call_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_runtime.engines.vllm.cancels.RETRY_S", 0.0)
    async with rig(Server(abort_answers=[FAILED, FAILED, OK])) as it:
        granted = lease()
        it.watch.cancel(("chatcmpl-r1",), await it.running(), granted)
        await turns_until(lambda: not granted.held)
        assert not granted.held
        assert it.server.events.count("abort chatcmpl-r1") == 3
        assert "health" not in it.server.events


async def test_a_request_that_was_never_sent_holds_nothing() -> None:
    async with rig(Server()) as it:
        granted = lease()
        exchange = it.upstream.request("POST", "/v1/chat/completions", b"{}")
        assert not exchange.was_sent
        it.watch.cancel(("chatcmpl-r1",), exchange, granted)
        assert not granted.held
        with pytest.raises(Exception, match="given up"):
            await exchange.head()
        assert it.server.events == []


async def test_an_engine_that_is_gone_holds_nothing() -> None:
    async with rig(Server()) as it:
        it.server.gate.clear()
        granted = lease()
        it.watch.cancel(("chatcmpl-r1",), await it.running(), granted)
        it.watch.engine_gone()
        assert not granted.held
        it.server.gate.set()
