"""Limits of time, comments and slow readers, to the second and in no time: the clock is virtual."""

from __future__ import annotations

import asyncio

import pytest

from llm_runtime.core.errors import ClientGone, DeadlineExceeded, QueueTimeout
from llm_runtime.core.outcome import Outcome
from llm_runtime.core.request import TimeLimits
from llm_runtime.runtime.config import LimitsConfig
from tests.runtime.rig import Client, Rig, rig, virtual
from tests.support.scripted import ScriptedBackend

TIMED_OUT = [(Outcome.TIMED_OUT, "deadline_exceeded")]
QUEUE_TIMEOUT = [(Outcome.EVICTED, "queue_timeout")]
SLOW = [(Outcome.CANCELLED, "slow_client")]


async def ended_after(r: Rig, client: Client, task: asyncio.Task[None]) -> float:
    """Seconds from arrival to the end of the request."""
    await task
    return r.recorder.records[-1].timeline.e2e_s or 0.0


@virtual
async def test_a_plain_reply_is_limited_in_total() -> None:
    async with rig() as r:
        client, task = r.play(r.request("one", stream=False, limits=TimeLimits(request_s=120)))
        stream = await r.backend.got(0)
        await asyncio.sleep(100)
        stream.say("a")
        assert await ended_after(r, client, task) == 120
        assert isinstance(client.error, DeadlineExceeded)
        assert stream.cancelled
    assert r.recorder.ends("one") == TIMED_OUT


@virtual
async def test_a_stream_is_limited_until_its_first_token() -> None:
    async with rig(limits=LimitsConfig(keep_alive_interval_s=None)) as r:
        client, task = r.play(r.request("one", limits=TimeLimits(request_s=120, idle_s=500)))
        stream = await r.backend.got(0)
        stream.role()  # a role is no token
        assert await ended_after(r, client, task) == 120
        assert isinstance(client.error, DeadlineExceeded)
        assert stream.cancelled
    assert r.recorder.ends("one") == TIMED_OUT


@virtual
async def test_a_healthy_stream_is_not_cut_at_the_request_limit() -> None:
    async with rig() as r:
        client, task = r.play(r.request("one", limits=TimeLimits(request_s=10, idle_s=5)))
        stream = await r.backend.got(0)
        for _ in range(300):
            await asyncio.sleep(4.9)
            stream.say("x")
        stream.end()
        await task
    assert client.complete


@virtual
async def test_a_silent_stream_is_cut_at_the_idle_limit() -> None:
    async with rig() as r:
        client, task = r.play(r.request("one", limits=TimeLimits(request_s=120, idle_s=60)))
        stream = await r.backend.got(0)
        await asyncio.sleep(7)
        stream.say("a")
        await asyncio.sleep(33)
        stream.say("b")
        assert await ended_after(r, client, task) == 7 + 33 + 60
        assert isinstance(client.error, DeadlineExceeded)
    assert r.recorder.ends("one") == TIMED_OUT


@virtual
async def test_a_total_limit_ends_a_healthy_stream() -> None:
    async with rig() as r:
        client, task = r.play(r.request("one", limits=TimeLimits(total_s=20)))
        stream = await r.backend.got(0)
        for _ in range(19):
            await asyncio.sleep(1)
            stream.say("x")
        assert await ended_after(r, client, task) == 20
        assert len(client.received) == 19
    assert r.recorder.ends("one") == TIMED_OUT


@virtual
async def test_a_clients_own_limit_ends_with_the_first_byte() -> None:
    limits = TimeLimits(request_s=120, first_byte_s=4)
    async with rig() as r:
        late, task = r.play(r.request("late", limits=limits))
        assert await ended_after(r, late, task) == 4
        lucky, task = r.play(r.request("lucky", limits=limits))
        stream = await r.backend.got(1)
        await asyncio.sleep(3)
        stream.role()
        await asyncio.sleep(30)
        stream.say("a")
        stream.end()
        await task
        assert lucky.complete
    async with rig(limits=LimitsConfig(keep_alive_interval_s=3)) as r:
        client, task = r.play(r.request("comments", limits=limits))
        stream = await r.backend.got(0)
        await asyncio.sleep(30)
        stream.end()
        await task
        assert client.complete


@virtual
async def test_waiting_has_a_limit_and_an_error_of_its_own() -> None:
    async with rig(ScriptedBackend(slots=1)) as r:
        r.play(r.request("running"))
        client, task = r.play(r.request("one", limits=TimeLimits(queue_s=3)))
        assert await ended_after(r, client, task) == 3
        assert isinstance(client.error, QueueTimeout)
        assert client.error.retry_after_s
        (await r.backend.got(0)).end()
        assert r.backend.ids == ["running"]
    assert r.recorder.ends("one") == QUEUE_TIMEOUT


@pytest.mark.parametrize("stream", [True, False])
def test_the_request_limit_passes_in_the_queue_too(stream: bool) -> None:
    @virtual
    async def run() -> None:
        async with rig(ScriptedBackend(slots=1)) as r:
            r.play(r.request("running"))
            client, task = r.play(r.request("one", stream=stream, limits=TimeLimits(request_s=120)))
            assert await ended_after(r, client, task) == 120
            assert isinstance(client.error, QueueTimeout)
            assert r.backend.ids == ["running"]
            assert r.dispatcher.num_waiting == 0
        assert r.recorder.ends("one") == QUEUE_TIMEOUT

    run()


# ---- comments


@virtual
async def test_comments_while_waiting_and_in_every_silence() -> None:
    async with rig(ScriptedBackend(slots=1), limits=LimitsConfig(keep_alive_interval_s=10)) as r:
        r.play(r.request("running"))
        running = await r.backend.got(0)
        client, task = r.play(r.request("one"))
        await asyncio.sleep(25)
        assert client.num_comments == 2  # in the queue
        running.end()
        stream = await r.backend.got(1)
        await asyncio.sleep(10)
        assert client.num_comments == 3  # in prefill, at 30 s
        stream.say("a")  # at 35 s
        await asyncio.sleep(9.9)
        assert client.num_comments == 3
        await asyncio.sleep(0.1)
        assert client.num_comments == 4
        stream.say("b")
        stream.end()
        await task
        record = await r.recorder.ended("one")
    assert client.complete
    assert record.timeline.ttft_s == 35
    assert record.timeline.itl_sum_s == 10
    assert record.usage.completion_tokens == 2


@virtual
async def test_comments_do_not_reset_the_idle_limit() -> None:
    async with rig(limits=LimitsConfig(keep_alive_interval_s=10)) as r:
        client, task = r.play(r.request("one", limits=TimeLimits(idle_s=35)))
        (await r.backend.got(0)).say("a")
        assert await ended_after(r, client, task) == 35
        assert client.num_comments == 3
    assert r.recorder.ends("one") == TIMED_OUT


@virtual
async def test_no_comments_while_tokens_flow_nor_before_a_plain_reply() -> None:
    async with rig(limits=LimitsConfig(keep_alive_interval_s=10)) as r:
        streaming, task = r.play(r.request("one"))
        plain, plain_task = r.play(r.request("two", stream=False))
        stream = await r.backend.got(0)
        for _ in range(20):
            await asyncio.sleep(9.9)
            stream.say("x")
        stream.end()
        (await r.backend.got(1)).end()
        await asyncio.wait([task, plain_task])
    assert streaming.num_comments == plain.num_comments == 0


# ---- slow readers


@pytest.mark.parametrize("stream", [True, False])
def test_who_does_not_read_is_cut_off(stream: bool) -> None:
    @virtual
    async def run() -> None:
        async with rig(limits=LimitsConfig(write_stall_timeout_s=30, request_timeout_s=None)) as r:
            client, task = r.play(r.request("one", stream=stream))
            engine = await r.backend.got(0)
            await asyncio.sleep(100)  # waiting for the engine is not the client's fault
            client.gate.clear()
            engine.say("a")
            if not stream:
                engine.end()
            assert await ended_after(r, client, task) == 130
            assert engine.cancelled == stream  # else it was done already
            assert client.handle is not None
            assert client.handle.cut_off
            assert not client.complete
            assert not task.cancelled()
        assert r.recorder.ends("one") == SLOW

    run()


@virtual
async def test_the_stall_is_counted_anew_for_each_write() -> None:
    async with rig(limits=LimitsConfig(write_stall_timeout_s=30)) as r:
        client, task = r.play(r.request("one"))
        stream = await r.backend.got(0)
        for _ in range(10):
            client.gate.clear()
            stream.say("a")
            await asyncio.sleep(29)
            client.gate.set()
            await asyncio.sleep(29)
        stream.end()
        await task
    assert client.complete


@virtual
async def test_news_after_a_long_silence_have_their_time_to_be_read() -> None:
    """The last write was long ago; the stall begins with this one."""
    async with rig(limits=LimitsConfig(keep_alive_interval_s=None, write_stall_timeout_s=5)) as r:
        request = r.request("one")
        with r.runtime.submit(request, await r.runtime.admit(request)) as handle:
            pulling = asyncio.ensure_future(handle.pull())
            await asyncio.sleep(502.5)
            (await r.backend.got(0)).fail(ClientGone("x"))
            with pytest.raises(ClientGone):
                await pulling
            await asyncio.sleep(4)  # the news of it is being sent
        assert not handle.cut_off


@virtual
async def test_the_news_of_an_error_has_a_limit_as_well() -> None:
    """The engine stalls, the limit passes, and the client does not read the error either."""
    async with rig(limits=LimitsConfig(write_stall_timeout_s=30, keep_alive_interval_s=None)) as r:
        request = r.request("one", limits=TimeLimits(idle_s=60))

        async def play() -> None:
            with r.runtime.submit(request, await r.runtime.admit(request)) as handle:
                await handle.pull()
                with pytest.raises(DeadlineExceeded):
                    await handle.pull()
                await asyncio.Event().wait()  # a send that never ends

        task = r.group.create_task(play())
        (await r.backend.got(0)).say("a")
        await task
        record = await r.recorder.ended("one")
        assert record.timeline.e2e_s == 90
    assert r.recorder.ends("one") == TIMED_OUT


@virtual
async def test_a_limit_that_passes_during_a_write_waits_for_it() -> None:
    """A complete plain reply that is being sent is not taken away by its time limit."""
    async with rig() as r:
        client, task = r.play(r.request("one", stream=False, limits=TimeLimits(request_s=10)))
        client.gate.clear()
        await asyncio.sleep(9)
        (await r.backend.got(0)).end()
        await asyncio.sleep(9)
        client.gate.set()
        await task
    assert client.complete
    assert r.recorder.ends("one") == [(Outcome.COMPLETED, "stop")]


@virtual
async def test_another_cancellation_is_not_swallowed_with_ours() -> None:
    async with rig(limits=LimitsConfig(write_stall_timeout_s=30)) as r:
        client, task = r.play(r.request("one"))
        client.gate.clear()
        (await r.backend.got(0)).say("a")
        await r.backend.pulled(r.backend.streams[0], 1)
        assert client.handle is not None
        client.handle.client_gone()
        client.handle.cut()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
