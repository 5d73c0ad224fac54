"""`SlotWatch` against an engine whose slots the test moves by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import orjson
import pytest

from llm_runtime.core.lease import Lease, LeaseState
from llm_runtime.engines.llama_cpp.slots import TAG_FIELD, SlotWatch, WatchTimes, busy_tags
from llm_runtime.engines.upstream import Exchange, Upstream
from tests.engines.upstream.stubs import CHUNKED, Peer, Stub, chunk, stub, turns_until

QUICK = WatchTimes(poll_interval_s=0.001, first_byte_wait_s=60, settle_s=60, cancel_timeout_s=60)


@dataclass
class Engine:
    """busy: tags of slots at work. answers: what /slots says instead, one after the other.
    first_byte: requests get none until it is set. may_answer: /slots tells, once it is set, what was
    so when it was asked."""

    busy: set[int] = field(default_factory=set)
    answers: list[bytes] = field(default_factory=list)
    first_byte: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    num_polls: int = 0
    num_closed: int = 0

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def script(self, peer: Peer) -> None:
        while request := await peer.request():
            if request.startswith(b"GET /slots"):
                self.num_polls += 1
                told = self.answers.pop(0) if self.answers else self.slots()
                await self.may_answer.wait()
                await peer.send(told)
                continue
            waiting = asyncio.create_task(self.first_byte.wait())
            closing = asyncio.create_task(peer.closed())
            try:
                await asyncio.wait((waiting, closing), return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    await peer.send(CHUNKED + chunk(b"data: progress\n\n"))
                await closing
            finally:
                waiting.cancel()
                closing.cancel()
            self.num_closed += 1
            return

    def slots(self) -> bytes:
        rows: list[dict[str, object]] = [
            {"is_processing": True, "params": {TAG_FIELD: tag}} for tag in self.busy
        ]
        rows += [{"is_processing": False}, {"is_processing": False, "params": {TAG_FIELD: 1}}]
        return answer(orjson.dumps(rows))


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


@dataclass
class Scene:
    engine: Engine
    server: Stub
    upstream: Upstream
    watch: SlotWatch
    freed: list[str] = field(default_factory=list)
    suspects: list[str] = field(default_factory=list)

    async def request(self, *, answered: bool = True) -> Exchange:
        if answered:
            self.engine.first_byte.set()
        before = len(self.server.requests)
        exchange = self.upstream.request("POST", "/v1/chat/completions", b"{}")
        await turns_until(lambda: len(self.server.requests) > before)
        await turns_until(lambda: exchange.has_started is answered)
        return exchange

    def lease(self, name: str = "r") -> Lease:
        return Lease(name, "replica", 1, 0.0, lambda lease: self.freed.append(lease.request_id))

    async def polls(self, count: int = 3) -> None:
        """Until the engine was asked that many times more."""
        target = self.engine.num_polls + count
        await turns_until(lambda: self.engine.num_polls >= target)


@contextlib.asynccontextmanager
async def scene(times: WatchTimes = QUICK) -> AsyncIterator[Scene]:
    engine = Engine()
    suspects: list[str] = []
    async with stub(engine.script) as server, Upstream(server.address) as upstream:
        watch = SlotWatch(upstream, times, lambda lease: suspects.append(lease.request_id))
        running = asyncio.create_task(watch.run())
        try:
            yield Scene(engine, server, upstream, watch, suspects=suspects)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def test_lease_is_free_when_no_slot_bears_the_tag_and_not_before() -> None:
    async with scene() as it:
        it.engine.busy = {1, 2}
        exchange, lease = await it.request(), it.lease()
        it.watch.cancel(1, exchange, lease)
        assert (exchange.ended, lease.state) == (True, LeaseState.CANCELLING)
        await it.polls()
        assert it.freed == []
        it.engine.busy = {2}  # an idle slot still shows tag 1
        await turns_until(lambda: it.freed == ["r"])
        assert lease.state is LeaseState.FREE


async def test_engine_is_asked_only_while_something_is_cancelled() -> None:
    async with scene() as it:
        exchange = await it.request()
        for _ in range(100):
            await asyncio.sleep(0)
        assert it.engine.num_polls == 0
        it.watch.cancel(1, exchange, it.lease())
        await turns_until(lambda: it.freed == ["r"])
        asked = it.engine.num_polls
        await asyncio.sleep(5 * QUICK.poll_interval_s)
        assert it.engine.num_polls == asked


async def test_each_request_is_freed_on_its_own() -> None:
    async with scene() as it:
        it.engine.busy = {1, 2, 3}
        for tag in (1, 2, 3):
            it.watch.cancel(tag, await it.request(), it.lease(f"r{tag}"))
        await it.polls()
        it.engine.busy = {1, 3}
        await turns_until(lambda: it.freed == ["r2"])
        it.engine.busy = set()
        await turns_until(lambda: sorted(it.freed) == ["r1", "r2", "r3"])


async def test_what_was_asked_before_a_cancellation_says_nothing_about_it() -> None:
    async with scene() as it:
        it.engine.busy = {1}
        it.engine.may_answer.clear()
        it.watch.cancel(1, await it.request(), it.lease("r1"))
        await it.polls(1)
        it.engine.busy = {1, 2}
        it.watch.cancel(2, await it.request(), it.lease("r2"))
        it.engine.may_answer.set()
        await it.polls()
        assert it.freed == []


async def test_unanswered_request_is_closed_at_its_first_byte() -> None:
    async with scene() as it:
        exchange = await it.request(answered=False)
        it.watch.cancel(1, exchange, it.lease())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not exchange.ended
        assert (it.engine.num_closed, it.freed) == (0, [])
        it.engine.busy = {1}
        it.engine.first_byte.set()
        await turns_until(lambda: it.engine.num_closed == 1)
        await it.polls()
        assert it.freed == []
        it.engine.busy = set()
        await turns_until(lambda: it.freed == ["r"])


async def test_request_without_any_answer_is_closed_in_the_end_and_must_stay_away() -> None:
    times = WatchTimes(poll_interval_s=0.001, first_byte_wait_s=0.02, settle_s=0.05)
    async with scene(times) as it:
        exchange = await it.request(answered=False)
        begun = asyncio.get_running_loop().time()
        it.watch.cancel(1, exchange, it.lease())
        await turns_until(lambda: it.engine.num_closed == 1)
        assert asyncio.get_running_loop().time() - begun >= 0.02
        assert it.freed == []
        await turns_until(lambda: it.freed == ["r"])
        assert asyncio.get_running_loop().time() - begun >= 0.07


async def test_request_that_shows_up_in_a_slot_after_it_was_closed_is_waited_for() -> None:
    times = WatchTimes(poll_interval_s=0.001, first_byte_wait_s=0.01, settle_s=60)
    async with scene(times) as it:
        it.watch.cancel(1, await it.request(answered=False), it.lease())
        await it.polls()
        it.engine.busy = {1}
        await it.polls()
        assert it.freed == []
        it.engine.busy = set()
        await turns_until(lambda: it.freed == ["r"])


async def test_request_that_was_never_sent_is_free_at_once() -> None:
    async with scene() as it, Upstream(it.server.address) as other:
        exchange = other.request("POST", "/", b"{}")
        it.watch.cancel(1, exchange, it.lease())
        assert it.freed == ["r"]
        assert exchange.ended


async def test_request_whose_connection_is_lost_before_an_answer_is_watched_too() -> None:
    async with scene() as it:
        it.engine.busy = {1}
        exchange = await it.request(answered=False)
        it.watch.cancel(1, exchange, it.lease())
        exchange.abort()  # as if the other side had closed it
        await it.polls()
        assert it.freed == []
        it.engine.busy = set()
        await turns_until(lambda: it.freed == ["r"])


async def test_engine_that_is_gone_holds_nothing() -> None:
    async with scene() as it:
        it.engine.busy = {1}
        answered, waiting = await it.request(), await it.request()
        it.watch.cancel(1, answered, it.lease("r1"))
        it.watch.cancel(2, waiting, it.lease("r2"))
        it.watch.engine_gone()
        assert sorted(it.freed) == ["r1", "r2"]
        assert waiting.ended
        it.watch.engine_gone()
        assert len(it.freed) == 2


@pytest.mark.parametrize(
    "trouble",
    [
        answer(b"{}", b"500 Oops"),
        answer(b"<html>"),
        answer(b'{"error":{}}'),
        answer(b"[]"),
        answer(b'[{"is_processing":true}]'),
        b"garbage\r\n\r\n",
    ],
)
async def test_answer_that_says_nothing_frees_nothing(trouble: bytes) -> None:
    async with scene() as it:
        it.engine.busy = {1}
        it.engine.answers = [trouble] * 3
        it.watch.cancel(1, await it.request(), it.lease())
        await it.polls(4)
        assert it.freed == []
        it.engine.busy = set()
        await turns_until(lambda: it.freed == ["r"])


async def test_silent_engine_is_asked_again() -> None:
    times = WatchTimes(poll_interval_s=0.001, poll_timeout_s=0.02)
    async with scene(times) as it:
        it.engine.answers = [b"", b""]
        it.watch.cancel(1, await it.request(), it.lease())
        await turns_until(lambda: it.freed == ["r"])
        assert it.engine.num_polls == 3


async def test_unconfirmed_cancellation_turns_suspect_once_and_free_in_the_end() -> None:
    times = WatchTimes(poll_interval_s=0.001, cancel_timeout_s=0.01)
    async with scene(times) as it:
        it.engine.busy = {1}
        lease = it.lease()
        it.watch.cancel(1, await it.request(), lease)
        await turns_until(lambda: lease.state is LeaseState.SUSPECT)
        await it.polls()
        assert (it.suspects, it.freed) == (["r"], [])
        it.engine.busy = set()
        await turns_until(lambda: it.freed == ["r"])
        assert it.suspects == ["r"]


@pytest.mark.parametrize(
    ("body", "tags"),
    [
        (b"[]", None),
        (b'[{"is_processing":false}]', set()),
        (b"[%s,%s]" % ((b'{"is_processing":true,"params":{"n_discard":7}}',) * 2), {7}),
        (b'[{"is_processing":false,"params":{"n_discard":8}}]', set()),
        (b"", None),
        (b"{}", None),
        (b"7", None),
        (b'{"error":1}', None),
    ],
)  # fmt: skip
def test_reading_of_slots(body: bytes, tags: set[int] | None) -> None:
    assert busy_tags(body) == tags
