"""The mock engine's own promises: exact timing, static batches, back-pressure. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from llm_runtime.core.errors import BackendUnavailable
from llm_runtime.core.lease import LeaseState
from llm_runtime.engines.base import BackendState
from llm_runtime.engines.config import MockConfig
from llm_runtime.engines.mock import MockBackend
from llm_runtime.engines.mock_stream import MAX_BUFFERED_BYTES
from tests.engines.driving import Opened, make_request, open_batch, read
from tests.engines.virtual_time import LoopClock, VirtualTimeLoop, run_virtual

MS = 0.001


@asynccontextmanager
async def started(num_slots: int = 8, **config: float) -> AsyncIterator[MockBackend]:
    backend = MockBackend(
        MockConfig(**cast("Any", config)), model="m", num_slots=num_slots, model_created=5, clock=LoopClock()
    )
    await backend.start(lambda: None)
    yield backend
    await backend.aclose()


def now() -> float:
    return asyncio.get_running_loop().time()


def streamed(max_tokens: int = 4, **body: Any) -> Any:
    return make_request("m", stream=True, max_tokens=max_tokens, ignore_eos=True, **body)


async def arrival_times(opened: Opened) -> list[float]:
    """Milliseconds since now of each item that brought a token."""
    began_at = now()
    times = []
    while opened.stream.finished is None:
        await opened.stream.__anext__()
        if opened.stream.has_token:
            times.append(round((now() - began_at) / MS, 3))
    return times


def test_a_token_each_step_after_one_prefill_shared_by_the_batch() -> None:
    async def scenario() -> None:
        async with started() as backend:
            batch = open_batch(backend, [streamed(4) for _ in range(8)])
            times = await asyncio.gather(*map(arrival_times, batch))
            assert times == [[35.0, 45.0, 55.0, 65.0]] * 8
            assert batch[0].stream.first_token_at == pytest.approx(now() - 30 * MS)

    run_virtual(scenario())


def test_lateness_does_not_add_up() -> None:
    """A loop held up for 12 ms delays what falls into that time, and nothing after it."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        async with started() as backend:
            (opened,) = open_batch(backend, [streamed(5)])
            loop.call_at(now() + 38 * MS, loop.block, 12 * MS)
            assert await arrival_times(opened) == [35.0, 50.0, 55.0, 65.0, 75.0]

    run_virtual(scenario())


def test_plain_replies_come_whole_at_the_end() -> None:
    async def scenario() -> None:
        async with started() as backend:
            began_at = now()
            (opened,) = open_batch(backend, [make_request("m", max_tokens=4, ignore_eos=True)])
            answer = await read(opened, 1.0)
            assert now() - began_at == pytest.approx(65 * MS)
            assert opened.stream.first_token_at == pytest.approx(began_at + 35 * MS)
            assert len(answer.texts[0].split()) == 4

    run_virtual(scenario())


def test_early_members_end_early_and_the_batch_goes_on() -> None:
    async def scenario() -> None:
        async with started() as backend:
            short, long = open_batch(backend, [streamed(1), streamed(3)])
            assert await arrival_times(short) == [35.0]
            assert short.lease.state is LeaseState.FREE
            assert long.lease.held
            with pytest.raises(RuntimeError, match="one batch at a time"):
                open_batch(backend, [streamed(1)])
            assert await arrival_times(long) == [0.0, 10.0, 20.0], "the first was waiting for its reader"
            assert long.lease.state is LeaseState.FREE
            (following,) = open_batch(backend, [streamed(1)])
            assert await arrival_times(following) == [35.0]

    run_virtual(scenario())


def test_the_next_batch_may_start_from_within_the_last_free() -> None:
    """The dispatcher opens the next batch inside `on_free`; the engine has to be done by then."""

    async def scenario() -> None:
        async with started() as backend:
            batch = open_batch(backend, [streamed(2), streamed(2)])
            following: list[Opened] = []

            def on_free(lease: Any) -> None:
                if not any(opened.lease.held for opened in batch):
                    following.extend(open_batch(backend, [streamed(1)]))

            for opened in batch:
                opened.lease._on_free = on_free
            await asyncio.gather(*map(arrival_times, batch))
            assert await arrival_times(following[0]) == [35.0]

    run_virtual(scenario())


def test_an_engine_that_is_never_idle_keeps_exact_time() -> None:
    """The loop notices the end of a batch late. A batch that waited for it starts on time all the same;
    one that comes later starts when it comes."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        async with started() as backend:
            (opened,) = open_batch(backend, [streamed(2)])
            began_at = now()
            following: list[Opened] = []
            opened.lease._on_free = lambda _: following.extend(open_batch(backend, [streamed(1)]))
            loop.call_at(now() + 43 * MS, loop.block, 7 * MS)  # due at 45, noticed at 50
            await arrival_times(opened)
            await arrival_times(following[0])
            assert now() - began_at == pytest.approx((45 + 35) * MS)
            await asyncio.sleep(2 * MS)
            (later,) = open_batch(backend, [streamed(1)])
            assert await arrival_times(later) == [35.0]

    run_virtual(scenario())


def test_cancelling_one_frees_it_at_once_and_leaves_the_others_alone() -> None:
    async def scenario() -> None:
        async with started() as backend:
            stays, goes = open_batch(backend, [streamed(3), streamed(100)])
            await stays.stream.__anext__()
            goes.cancel()
            assert goes.lease.held, "not within the call: the caller's own books come first"
            await asyncio.sleep(0)
            assert goes.lease.state is LeaseState.FREE
            assert goes.stream.spent().completion_tokens == 1
            assert await arrival_times(stays) == [10.0, 20.0]

    run_virtual(scenario())


@pytest.mark.parametrize("after_ms", [0.0, 10.0, 48.0])
def test_a_batch_whose_members_all_left_is_over_at_once(after_ms: float) -> None:
    async def scenario() -> None:
        async with started() as backend:
            batch = open_batch(backend, [streamed(100) for _ in range(3)])
            await asyncio.sleep(after_ms * MS)
            for opened in batch:
                opened.cancel()
            await asyncio.sleep(0)
            assert [opened.lease.state for opened in batch] == [LeaseState.FREE] * 3
            (following,) = open_batch(backend, [streamed(1)])
            assert await arrival_times(following) == [35.0]

    run_virtual(scenario())


def test_a_slow_reader_gets_everything_joined() -> None:
    async def scenario() -> None:
        async with started() as backend:
            (opened,) = open_batch(backend, [streamed(20, include_usage=True)])
            await opened.freed_event.wait()
            item = await opened.stream.__anext__()
            assert isinstance(item, bytes)
            assert item.endswith(b"data: [DONE]\n\n")
            assert item.count(b"data: ") == 1 + 20 + 1 + 1 + 1  # role, tokens, finish, usage, end
            assert opened.stream.finished is not None
            assert opened.stream.has_token

    run_virtual(scenario())


def test_a_reader_that_stands_still_stops_its_own_stream_only() -> None:
    """The buffer is bounded, the timer rests when nobody can go on, and nothing is lost."""

    async def scenario() -> None:
        num_tokens = 4000
        async with started(context_tokens=10_000) as backend:
            stuck, reads = open_batch(backend, [streamed(num_tokens), streamed(num_tokens)])
            times = await arrival_times(reads)
            assert times[-1] == pytest.approx(25 + 10 * num_tokens)
            assert reads.lease.state is LeaseState.FREE
            made = stuck.stream.spent().completion_tokens
            assert 0 < made < num_tokens
            # Nothing else is due: a timer that still ticked would move time on below.
            idle_until = now() + 3600.0
            await asyncio.sleep(3600.0)
            assert stuck.stream.spent().completion_tokens == made
            item = await stuck.stream.__anext__()
            assert isinstance(item, bytes)
            assert MAX_BUFFERED_BYTES <= len(item) < MAX_BUFFERED_BYTES + 1024
            await stuck.stream.__anext__()
            assert now() == pytest.approx(idle_until + 10 * MS)
            while stuck.stream.finished is None:
                await stuck.stream.__anext__()
            assert stuck.stream.spent().completion_tokens == num_tokens

    run_virtual(scenario())


def test_a_stream_that_stands_still_can_be_cancelled() -> None:
    async def scenario() -> None:
        async with started(context_tokens=10_000) as backend:
            (stuck,) = open_batch(backend, [streamed(4000)])
            await asyncio.sleep(3600.0)
            stuck.cancel()
            await asyncio.sleep(0)
            assert stuck.lease.state is LeaseState.FREE
            (following,) = open_batch(backend, [streamed(1)])
            assert await arrival_times(following) == [35.0]

    run_virtual(scenario())


def test_choices_of_a_request_differ_and_end_on_their_own() -> None:
    async def scenario() -> None:
        async with started() as backend:
            plain = make_request("m", max_tokens=300, n=4, stream=True, include_usage=True)
            (opened,) = open_batch(backend, [plain])
            answer = await read(opened, 60.0)
            assert len(set(answer.texts.values())) == 4
            assert answer.usage is not None
            words = [len(text.split()) for text in answer.texts.values()]
            assert answer.usage["completion_tokens"] == sum(words)
            assert answer.finished.reason == answer.reasons[0]

    run_virtual(scenario())


def test_a_stop_string_is_held_back_from_the_stream() -> None:
    async def scenario() -> None:
        async with started() as backend:
            (opened,) = open_batch(backend, [streamed(30)])
            whole = (await read(opened, 60.0)).texts[0]
            words = whole.split(" ")
            stop = f"{words[9][-2:]} {words[10][:2]}"
            (opened,) = open_batch(backend, [streamed(30, stop=stop)])
            answer = await read(opened, 60.0)
            assert answer.texts[0] == whole[: whole.index(stop)]
            assert answer.reasons == {0: "stop"}
            assert answer.finished.usage.completion_tokens == 11, "the word that completed it counts"

    run_virtual(scenario())


def test_a_cancelled_stream_that_is_pulled_all_the_same_does_not_hang() -> None:
    async def scenario() -> None:
        async with started() as backend:
            (opened,) = open_batch(backend, [streamed(4)])
            opened.cancel()
            with pytest.raises(Exception, match="cancelled"):
                await opened.stream.__anext__()

    run_virtual(scenario())


def test_states_and_what_they_tell() -> None:
    async def scenario() -> None:
        changes: list[BackendState] = []
        backend = MockBackend(MockConfig(), model="m", num_slots=3, model_created=5, clock=LoopClock())
        changes.append(backend.status.state)
        assert backend.signs_of_life() is None
        await backend.start(lambda: changes.append(backend.status.state))
        changes.append(backend.status.state)
        assert (backend.info.num_slots, backend.info.model_created) == (3, 5)
        await backend.aclose()
        assert changes == [BackendState.STARTING, BackendState.READY, BackendState.STOPPED]
        with pytest.raises(BackendUnavailable):
            await backend.start(lambda: None)

    run_virtual(scenario())


def test_work_for_a_stopped_engine_fails_as_unavailable() -> None:
    async def scenario() -> None:
        async with started() as backend:
            await backend.aclose()
            (opened,) = open_batch(backend, [streamed(4)])
            with pytest.raises(BackendUnavailable):
                await opened.stream.__anext__()
            assert opened.lease.state is LeaseState.FREE
            assert len(opened.freed) == 1

    run_virtual(scenario())


@pytest.mark.parametrize("latencies", [(0.0, 0.0), (25.0, 0.0)])
def test_latencies_may_be_zero(latencies: tuple[float, float]) -> None:
    async def scenario() -> None:
        prefill_ms, decode_ms = latencies
        async with started(prefill_latency_ms=prefill_ms, decode_latency_ms=decode_ms) as backend:
            (opened,) = open_batch(backend, [streamed(50)])
            assert await arrival_times(opened) == [prefill_ms] * 50

    run_virtual(scenario())
