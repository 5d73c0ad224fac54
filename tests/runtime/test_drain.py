"""Draining, closing and fatal failures, without a process. Signals: `test_signals.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from llm_runtime.admission.base import Load, Reservation
from llm_runtime.core.errors import BackendUnavailable, ConfigError, Draining
from llm_runtime.core.outcome import Outcome, Usage
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.engines.base import BackendState
from llm_runtime.runtime.config import LimitsConfig
from llm_runtime.runtime.in_flight import LAST_WORDS_S
from llm_runtime.runtime.runtime import Readiness
from llm_runtime.scheduling.base import Capacity, Decision, Placement, Room
from tests.runtime.rig import rig, virtual
from tests.runtime.test_retries import Preempting
from tests.support.scripted import ScriptedBackend

STOPPED = [(Outcome.CANCELLED, "server_stopped")]


@virtual
async def test_draining_refuses_new_work_and_finishes_the_old() -> None:
    async with rig(ScriptedBackend(slots=1)) as r:
        running, task = r.play(r.request("running"))
        stream = await r.backend.got(0)
        waiting, waiting_task = r.play(r.request("waiting"))
        await r.recorder.until(lambda: r.dispatcher.num_waiting == 1, "one in the queue")
        r.runtime.begin_drain()
        drained = r.group.create_task(r.runtime.drained())
        new, new_task = r.play(r.request("new"))
        await new_task
        assert isinstance(new.error, Draining)
        assert new.error.retry_after_s
        assert r.runtime.readiness().reason == "draining"
        await asyncio.sleep(5)
        stream.end()
        (await r.backend.got(1)).end()  # who was let in is served, also from the queue
        await drained
        await asyncio.wait([task, waiting_task])
        assert running.complete
        assert waiting.complete
    assert [request.id for request, _ in r.recorder.rejections] == ["new"]
    assert r.backend.closed


@virtual
async def test_the_drain_limit_ends_what_is_left() -> None:
    limits = LimitsConfig(drain_timeout_s=30)
    async with rig(ScriptedBackend(slots=1), limits=limits) as r:
        running, task = r.play(r.request("running"))
        stream = await r.backend.got(0)
        stream.say("a")
        waiting, waiting_task = r.play(r.request("waiting"))
        await r.recorder.until(lambda: r.dispatcher.num_waiting == 1, "one in the queue")
        r.runtime.begin_drain()
        began_at = r.clock.now()
        await r.runtime.drained()
        assert r.clock.now() - began_at == pytest.approx(30, abs=0.001)
        await asyncio.wait([task, waiting_task])
        assert isinstance(running.error, Draining)
        assert isinstance(waiting.error, Draining)
        assert stream.cancelled
        assert r.backend.ids == ["running"]  # nothing new starts when others are ended
    assert r.recorder.ends("running") == r.recorder.ends("waiting") == STOPPED


@virtual
async def test_a_drain_can_be_cut_short() -> None:
    async with rig() as r:
        client, task = r.play(r.request("running"))
        await r.backend.got(0)
        r.runtime.begin_drain()
        drained = r.group.create_task(r.runtime.drained())
        await asyncio.sleep(3)
        assert not drained.done()
        began_at = r.clock.now()
        r.runtime.end_drain()
        await drained
        await task
        assert r.clock.now() - began_at == pytest.approx(0, abs=0.001)
        assert isinstance(client.error, Draining)


@virtual
async def test_who_does_not_read_cannot_hold_up_the_end() -> None:
    async with rig(limits=LimitsConfig(drain_timeout_s=10, write_stall_timeout_s=500)) as r:
        client, task = r.play(r.request("stuck"))
        client.gate.clear()
        (await r.backend.got(0)).say("a")
        await r.backend.pulled(r.backend.streams[0], 1)
        r.runtime.begin_drain()
        began_at = r.clock.now()
        await r.runtime.drained()
        assert r.clock.now() - began_at == pytest.approx(10 + LAST_WORDS_S, abs=0.01)
        await task
        assert client.handle is not None
        assert client.handle.cut_off
    assert r.recorder.ends("stuck") == STOPPED


@virtual
async def test_nothing_in_flight_drains_at_once() -> None:
    async with rig() as r:
        r.runtime.begin_drain()
        began_at = r.clock.now()
        await r.runtime.drained()
        assert r.clock.now() == began_at


@virtual
async def test_closing_without_a_drain_ends_everything() -> None:
    """Another server than ours may close the lifespan under running requests."""
    async with rig(ScriptedBackend(slots=1)) as r:
        clients = [r.play(r.request(f"r{n}", stream=n % 2 == 0)) for n in range(4)]
        await r.backend.got(0)
        await r.runtime.aclose()
        await r.runtime.aclose()
        for client, task in clients:
            await task
            assert isinstance(client.error, Draining)
        assert r.backend.closed
        assert r.backend.ids == ["r0"]


@virtual
async def test_an_engine_that_cannot_close_does_not_keep_the_others_open() -> None:
    class Stuck(ScriptedBackend):
        async def aclose(self) -> None:
            await super().aclose()
            raise RuntimeError("will not stop")

    stuck, other = Stuck(name="stuck"), ScriptedBackend(name="other")
    async with rig(stuck, other):
        pass
    assert stuck.closed
    assert other.closed


# ---- fatal


@virtual
async def test_a_failure_of_an_engines_task_is_fatal() -> None:
    class Dying(ScriptedBackend):
        async def start(self, on_change: Callable[[], None]) -> None:
            await super().start(on_change)
            await asyncio.sleep(5)
            raise ZeroDivisionError

    backend = Dying(slots=1)
    backend.starts_ready = False
    async with rig(backend) as r:
        told: list[str | None] = []
        r.runtime.on_fatal = lambda: told.append(r.runtime.fatal_reason)
        waiting, task = r.play(r.request("waiting"))
        await task
        assert isinstance(waiting.error, BackendUnavailable)
        late, task = r.play(r.request("late"))
        await task
        assert isinstance(late.error, Draining)
        assert r.runtime.fatal_reason == "engine scripted-0 failed (ZeroDivisionError)"
        assert r.runtime.readiness() == Readiness(False, r.runtime.fatal_reason)
        assert told == [r.runtime.fatal_reason]
    assert r.recorder.ends("waiting") == [(Outcome.FAILED, "backend_unavailable")]


@virtual
async def test_a_refusal_to_start_is_not_fatal() -> None:
    """A broken model file is the operator's to mend; the server stays to say so."""
    backend = ScriptedBackend()
    backend.start_fails = ConfigError("the model file is broken")
    backend.become(BackendState.FAILED, "the model file is broken")
    async with rig(backend) as r:
        await asyncio.sleep(1)
        assert r.runtime.fatal_reason is None
        assert r.runtime.readiness().reason == "engine failed: the model file is broken"
    assert [state for _, state, _ in r.recorder.states] == ["failed", "stopped"]


@virtual
async def test_a_scheduler_that_breaks_is_fatal_and_strands_nobody() -> None:
    class Breaking(Preempting):
        broken = False

        def decide(self, now: float, capacity: Capacity) -> Decision:
            if self.broken:
                raise ZeroDivisionError
            return super().decide(now, capacity)

        def remove(self, request_id: str, now: float) -> bool:
            assert not self.broken, "a broken scheduler is not asked again"
            return super().remove(request_id, now)

    scheduler = Breaking()
    async with rig(ScriptedBackend(slots=1), scheduler=scheduler) as r:
        running, task = r.play(r.request("running"))
        await r.backend.got(0)
        waiting, waiting_task = r.play(r.request("waiting"))
        await r.recorder.until(lambda: r.dispatcher.num_waiting == 1, "one in the queue")
        scheduler.broken = True
        third, third_task = r.play(r.request("third"))
        await asyncio.wait([task, waiting_task, third_task])
        for client in (running, waiting, third):
            assert isinstance(client.error, BackendUnavailable)
        assert r.runtime.fatal_reason == "the dispatcher failed"
        scheduler.broken = False


@virtual
async def test_one_that_breaks_at_a_start_is_fatal_as_well() -> None:
    class Breaking(Preempting):
        def start(self, request: RuntimeRequest, now: float, room: Room) -> Placement | None:
            raise ZeroDivisionError

    async with rig(scheduler=Breaking()) as r:
        client, task = r.play(r.request("one"))
        await asyncio.wait([task])
        assert isinstance(client.error, BackendUnavailable)
        assert r.runtime.fatal_reason == "the dispatcher failed"
        assert r.runtime.num_active == 0


@virtual
async def test_a_request_that_cannot_be_queued_has_an_end_as_well() -> None:
    class Choosy(Preempting):
        def add(self, request: RuntimeRequest, now: float) -> None:
            raise ValueError("not this one")

    async with rig(scheduler=Choosy()) as r:
        request = r.request("one")
        permit = await r.runtime.admit(request)
        with pytest.raises(ValueError, match="not this one"), r.runtime.submit(request, permit):
            pass
        assert r.runtime.num_active == 0
    assert r.recorder.ends("one") == [(Outcome.FAILED, "internal_error")]


@virtual
async def test_a_policy_that_fails_at_the_end_keeps_nothing_in_the_books() -> None:
    class Ungrateful:
        name = "ungrateful"

        def reserve(self, request: RuntimeRequest, load: Load, now: float) -> Reservation:
            return self

        def rollback(self) -> None: ...

        def settle(self, usage: Usage | None) -> None:
            raise ZeroDivisionError

    async with rig(identity=[Ungrateful()]) as r:
        client, task = r.play(r.request("one"))
        (await r.backend.got(0)).end()
        await task
        assert client.complete
        assert r.runtime.num_active == 0
