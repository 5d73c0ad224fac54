"""Trying again before the commit point, preemption, and what an engine may do to a lease meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_runtime.core.errors import BackendError, BackendUnavailable, Shed
from llm_runtime.core.outcome import Outcome
from llm_runtime.core.request import TimeLimits
from llm_runtime.engines.base import BackendState
from llm_runtime.runtime.config import LimitsConfig
from llm_runtime.runtime.decision import MAX_ATTEMPTS
from llm_runtime.scheduling.base import Capacity, Decision
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.runtime.rig import rig, virtual
from tests.support.schedulers import Forwarding
from tests.support.scripted import ScriptedBackend, ScriptedStream

COMPLETED = [(Outcome.COMPLETED, "stop")]


def failing(times: int, *, after: tuple[str, ...] = ()) -> Any:
    """For `on_open`: the first `times` requests are not taken, the next is answered."""
    opened = 0

    def speak(stream: ScriptedStream) -> None:
        nonlocal opened
        opened += 1
        if opened > times:
            stream.say("ok")
            stream.end()
        else:
            stream.say(*after)
            stream.fail(BackendUnavailable("not now"))

    return speak


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("times", range(1, MAX_ATTEMPTS))
def test_what_no_engine_took_is_tried_again(times: int, stream: bool) -> None:
    @virtual
    async def run() -> None:
        async with rig(ScriptedBackend(slots=1, on_open=failing(times))) as r:
            client, task = r.play(r.request("one", stream=stream))
            await task
        assert client.complete
        assert b"ok" in b"".join(client.received)
        assert r.backend.ids == ["one"] * (times + 1)
        assert r.recorder.ends("one") == COMPLETED

    run()


@virtual
async def test_tries_are_limited() -> None:
    async with rig(ScriptedBackend(on_open=failing(99))) as r:
        client, task = r.play(r.request("one"))
        await task
    assert isinstance(client.error, BackendUnavailable)
    assert len(r.backend.ids) == MAX_ATTEMPTS
    assert r.recorder.ends("one") == [(Outcome.FAILED, "backend_unavailable")]


@virtual
async def test_nothing_is_tried_again_after_the_first_byte() -> None:
    async with rig(ScriptedBackend(on_open=failing(1, after=("half",)))) as r:
        client, task = r.play(r.request("one"))
        await task
    assert isinstance(client.error, BackendUnavailable)
    assert r.backend.ids == ["one"]


@virtual
async def test_comments_do_not_commit() -> None:
    async with rig(limits=LimitsConfig(keep_alive_interval_s=10)) as r:
        client, task = r.play(r.request("one"))
        stream = await r.backend.got(0)
        await asyncio.sleep(35)
        assert client.num_comments == 3
        stream.fail(BackendUnavailable("not now"))
        again = await r.backend.got(1)
        again.say("ok")
        again.end()
        await task
    assert client.complete
    assert r.recorder.ends("one") == COMPLETED


@virtual
async def test_the_next_try_may_run_elsewhere() -> None:
    def refuse(stream: ScriptedStream) -> None:
        bad.become(BackendState.CRASHED, "it died")
        stream.fail(BackendUnavailable("died"))

    bad = ScriptedBackend(slots=4, name="bad", on_open=refuse)
    good = ScriptedBackend(slots=1, name="good", on_open=failing(0))
    async with rig(bad, good) as r:
        client, task = r.play(r.request("one"))
        await task
    assert client.complete
    assert (bad.ids, good.ids) == (["one"], ["one"])
    assert r.recorder.records[0].replica == "good-1"


@virtual
async def test_an_unconfirmed_end_of_the_first_try_does_not_end_the_second() -> None:
    """The engine lets go of the first try's slot only while the second runs elsewhere."""
    first = ScriptedBackend(slots=2, name="first")
    second = ScriptedBackend(slots=1, name="second")
    first.confirms_cancels = False
    async with rig(first, second) as r:
        client, task = r.play(r.request("one"))
        stream = await first.got(0)
        first.become(BackendState.DRAINING)
        stream.fail(BackendUnavailable("restarting"), free=False)
        again = await second.got(0)
        assert r.num_taken_slots == 2
        stream.lease.free()
        stream.lease.free()
        assert r.num_taken_slots == 1
        assert r.dispatcher.snapshot().details["num_running"] == 1
        again.say("ok")
        again.end()
        await task
        assert r.num_taken_slots == 0
    assert client.complete
    assert r.recorder.ends("one") == COMPLETED


@virtual
async def test_who_leaves_between_two_tries_is_not_tried_again() -> None:
    async with rig(ScriptedBackend(slots=1)) as r:
        client, task = r.play(r.request("one"))
        stream = await r.backend.got(0)
        r.backend.become(BackendState.CRASHED, "it died")
        stream.fail(BackendUnavailable("died"))
        await r.recorder.until(lambda: True, "")
        await asyncio.sleep(0)
        assert r.dispatcher.num_waiting == 1
        client.leave()
        await task
        r.backend.become(BackendState.READY)
        assert r.backend.ids == ["one"]
    assert r.recorder.ends("one") == [(Outcome.CANCELLED, "client_gone")]


# ---- a backend that breaks its promise


@pytest.mark.parametrize(
    ("raised", "told"),
    [(ZeroDivisionError(), BackendError), (BackendError("no"), BackendError)],
)
def test_an_open_that_raises_loses_no_slot(raised: Exception, told: type[Exception]) -> None:
    @virtual
    async def run() -> None:
        async with rig(ScriptedBackend(slots=1)) as r:
            r.backend.opening_fails = raised
            client, task = r.play(r.request("one"))
            waiting, waiting_task = r.play(r.request("two"))
            await task
            assert r.num_taken_slots == 0
            assert type(client.error) is told
            await waiting_task
            assert type(waiting.error) is told
            r.backend.opening_fails = None
            third, task = r.play(r.request("three"))
            (await r.backend.got(0)).end()
            await task
            assert third.complete
        assert r.recorder.ends("one") == [(Outcome.FAILED, "backend_error")]

    run()


@virtual
async def test_an_open_that_says_unavailable_is_tried_again() -> None:
    async with rig(ScriptedBackend(slots=1)) as r:
        r.backend.opening_fails = BackendUnavailable("gone a moment ago")
        client, task = r.play(r.request("one"))
        await task
    assert isinstance(client.error, BackendUnavailable)
    assert [request_id for request_id, _ in r.recorder.dispatches] == ["one"] * MAX_ATTEMPTS


# ---- preemption


class Preempting(Forwarding):
    """The preset's decisions, and what the test wants preempted or shed, once."""

    def __init__(self) -> None:
        super().__init__(build_scheduler(SchedulingConfig()))
        self.preempt: tuple[str, ...] = ()
        self.shed: tuple[str, ...] = ()

    def decide(self, now: float, capacity: Capacity) -> Decision:
        decision = super().decide(now, capacity)
        preempt, self.preempt = self.preempt, ()
        shed, self.shed = self.shed, ()
        return Decision(decision.dispatch, decision.evict, preempt, decision.wake_at, shed)


@virtual
async def test_preempted_before_the_first_byte_it_runs_again_later() -> None:
    scheduler = Preempting()
    async with rig(ScriptedBackend(slots=1), scheduler=scheduler) as r:
        low, low_task = r.play(r.request("low"))
        stream = await r.backend.got(0)
        scheduler.preempt = ("low",)
        high, high_task = r.play(r.request("high"))
        await r.backend.cancelled(stream)
        # It is back at its old place, which is the first.
        again = await r.backend.got(1)
        assert r.backend.ids == ["low", "low"]
        again.say("ok")
        again.end()
        await low_task
        (await r.backend.got(2)).end()
        await high_task
    assert low.complete
    assert high.complete
    assert r.recorder.ends("low") == r.recorder.ends("high") == COMPLETED


@virtual
async def test_preempted_after_the_first_byte_it_stays() -> None:
    scheduler = Preempting()
    async with rig(ScriptedBackend(slots=1), scheduler=scheduler) as r:
        low, low_task = r.play(r.request("low"))
        stream = await r.backend.got(0)
        stream.say("a")
        await r.backend.pulled(stream, 1)
        scheduler.preempt = ("low",)
        r.play(r.request("high"))
        await asyncio.sleep(1)
        assert not stream.cancelled
        stream.end()
        await low_task
        (await r.backend.got(1)).end()
    assert low.complete


@virtual
async def test_shed_after_the_first_byte_it_ends_with_an_error() -> None:
    scheduler = Preempting()
    async with rig(ScriptedBackend(slots=1), scheduler=scheduler) as r:
        low, low_task = r.play(r.request("low"))
        stream = await r.backend.got(0)
        stream.say("a")
        await r.backend.pulled(stream, 1)
        scheduler.shed = ("low",)
        high, high_task = r.play(r.request("high"))
        await r.backend.cancelled(stream)
        await low_task
        (await r.backend.got(1)).end()
        await high_task
    assert isinstance(low.error, Shed)
    assert high.complete
    assert r.recorder.ends("low") == [(Outcome.EVICTED, "preempted")]


@virtual
async def test_shed_before_the_first_byte_it_runs_again() -> None:
    scheduler = Preempting()
    async with rig(ScriptedBackend(slots=1), scheduler=scheduler) as r:
        low, low_task = r.play(r.request("low"))
        stream = await r.backend.got(0)
        scheduler.shed = ("low",)
        high, high_task = r.play(r.request("high"))
        await r.backend.cancelled(stream)
        (await r.backend.got(1)).end()
        (await r.backend.got(2)).end()
        await low_task
        await high_task
    assert low.complete
    assert high.complete


@virtual
async def test_preempted_while_a_comment_is_being_sent() -> None:
    """The note is found at the next pull, although nothing wakes the task then."""
    scheduler = Preempting()
    async with rig(ScriptedBackend(slots=1), scheduler=scheduler) as r:
        request = r.request("low")
        with r.runtime.submit(request, await r.runtime.admit(request)) as handle:
            scheduler.preempt = ("low",)
            r.play(r.request("high"))
            await asyncio.sleep(0)
            assert not r.backend.streams[0].cancelled
            assert await handle.pull() == b""
            assert r.backend.streams[0].cancelled
            again = await r.backend.got(1)
            again.end()
            await handle.pull()
        (await r.backend.got(2)).end()
    assert r.recorder.ends("low") == COMPLETED


@virtual
async def test_preemption_is_no_failed_try() -> None:
    scheduler = Preempting()
    async with rig(ScriptedBackend(slots=1), scheduler=scheduler) as r:
        client, task = r.play(r.request("low"))
        for number in range(5):
            stream = await r.backend.got(number)
            scheduler.preempt = ("low",)
            r.dispatcher.kick()
            waiting, _ = r.play(r.request(f"w{number}"))
            await r.backend.cancelled(stream)
            waiting.leave()
        (await r.backend.got(5)).fail(BackendUnavailable("not now"))
        (await r.backend.got(6)).end()
        await task
    assert client.complete


@virtual
async def test_time_in_an_engine_that_gave_it_back_does_not_count_as_waiting() -> None:
    limits = TimeLimits(queue_s=10, request_s=None, idle_s=None)
    async with rig(ScriptedBackend(slots=1)) as r:
        client, task = r.play(r.request("one", limits=limits))
        stream = await r.backend.got(0)
        await asyncio.sleep(60)
        r.backend.become(BackendState.CRASHED, "died")
        stream.fail(BackendUnavailable("died"))
        await asyncio.sleep(9)
        assert r.dispatcher.num_waiting == 1
        r.backend.become(BackendState.READY)
        (await r.backend.got(1)).end()
        await task
    assert client.complete
