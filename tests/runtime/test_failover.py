"""Trying elsewhere, resting and breakers, in virtual time, where every instant is exact."""

from __future__ import annotations

import asyncio

from llm_runtime.core.errors import (
    BackendCrashed,
    BackendError,
    BackendUnavailable,
    DeadlineExceeded,
    UpstreamRateLimited,
)
from llm_runtime.core.outcome import Outcome
from llm_runtime.core.request import TimeLimits
from llm_runtime.routing.breaker import BreakerRules
from llm_runtime.routing.config import RoutingConfig
from llm_runtime.runtime.config import LimitsConfig
from tests.runtime.rig import rig, virtual
from tests.support.scripted import ScriptedBackend, answer

RULES = BreakerRules(failures=2, open_s=5.0, open_max_s=60.0)
NO_LIMITS = LimitsConfig(request_timeout_s=None, stream_idle_timeout_s=None)


def pair(first_slots: int = 4, second_slots: int = 1) -> tuple[ScriptedBackend, ScriptedBackend]:
    """The one with more free slots is asked first."""
    return ScriptedBackend(slots=first_slots, name="a"), ScriptedBackend(slots=second_slots, name="b")


@virtual
async def test_the_second_try_waits_for_the_other_rather_than_go_back() -> None:
    a, b = pair()
    async with rig(a, b) as r:
        busy, busy_task = r.play(r.request("busy", num_slots=1))
        (await a.got(0)).say("x")
        blocker, blocker_task = r.play(r.request("blocker", num_slots=1))
        blocked = await a.got(1)
        blocked.fail(BackendError("lost"))
        held = await b.got(0)
        client, task = r.play(r.request("one"))
        (await a.got(2)).fail(BackendError("lost"))
        await asyncio.sleep(1)
        assert r.dispatcher.num_waiting == 1, "the other one has no slot free"
        held.say("y")
        held.end()
        again = await b.got(1)
        again.end()
        a.streams[0].end()
        for each in (task, busy_task, blocker_task):
            await each
    assert (client.complete, busy.complete, blocker.complete) == (True, True, True)
    assert b.ids == ["blocker", "one"]
    assert ("a-0", "failed", True) in r.recorder.attempts


@virtual
async def test_without_another_the_failure_is_passed_on() -> None:
    async with rig(ScriptedBackend(on_open=lambda s: s.fail(BackendError("lost")))) as r:
        client, task = r.play(r.request("one"))
        await task
    assert isinstance(client.error, BackendError)
    assert r.backend.ids == ["one"]
    assert r.recorder.attempts == [("scripted-0", "failed", False)]


@virtual
async def test_a_crash_is_not_tried_elsewhere() -> None:
    a, b = pair()
    a.on_open = lambda stream: stream.fail(BackendCrashed("died of it"))
    async with rig(a, b) as r:
        client, task = r.play(r.request("one"))
        await task
    assert isinstance(client.error, BackendCrashed)
    assert b.ids == []


@virtual
async def test_who_rests_is_not_asked_while_another_serves_and_is_asked_again_in_time() -> None:
    a, b = pair()
    a.on_open = lambda stream: stream.fail(UpstreamRateLimited("busy", retry_after_s=7.0))
    async with rig(a, b) as r:
        first, first_task = r.play(r.request("first"))
        held = await b.got(0)
        waiting, waiting_task = r.play(r.request("waiting"))
        await asyncio.sleep(6.9)
        assert a.ids == ["first"], "it rests, though the other one has no slot free"
        a.on_open = answer("ok")
        await asyncio.sleep(0.2)
        assert a.ids == ["first", "waiting"]
        held.end()
        await first_task
        await waiting_task
    assert first.complete
    assert waiting.complete


@virtual
async def test_when_all_rest_they_are_asked_all_the_same() -> None:
    a, b = pair()
    a.on_open = b.on_open = lambda stream: stream.fail(UpstreamRateLimited("busy", retry_after_s=7.0))
    async with rig(a, b) as r:
        for number in range(2):
            client, task = r.play(r.request(f"r{number}"))
            await task
            assert isinstance(client.error, UpstreamRateLimited)
        a.on_open = b.on_open = answer("idle again")
        client, task = r.play(r.request("now"))
        await task
    assert client.complete, "the moment it is idle"


@virtual
async def test_half_open_one_request_tries_and_the_others_wait_for_what_it_finds() -> None:
    backend = ScriptedBackend(slots=4, on_open=lambda stream: stream.fail(BackendError("broke")))
    async with rig(backend, rules=RULES, limits=NO_LIMITS) as r:
        for number in range(2):
            _, task = r.play(r.request(f"bad{number}"))
            await task
        refused, task = r.play(r.request("while open"))
        await task
        assert isinstance(refused.error, BackendUnavailable)
        assert refused.error.retry_after_s == 5.0
        assert not r.runtime.readiness().ready
        backend.on_open = None
        await asyncio.sleep(5.0)
        assert r.runtime.readiness().ready
        clients = [r.play(r.request(f"r{number}")) for number in range(3)]
        await asyncio.sleep(0.1)
        assert backend.ids[2:] == ["r0"], "one alone"
        backend.streams[2].say("it works")
        await asyncio.sleep(0.1)
        assert backend.ids[2:] == ["r0", "r1", "r2"], "the first sign of an answer is enough"
        for stream in backend.streams[2:]:
            stream.end()
        for _, task in clients:
            await task
    assert [state for _, state, _ in r.recorder.states] == ["ready", "crashed", "ready", "stopped"]


@virtual
async def test_a_trial_that_takes_long_does_not_hold_up_the_others_for_ever() -> None:
    backend = ScriptedBackend(slots=4, on_open=lambda stream: stream.fail(BackendError("broke")))
    async with rig(backend, rules=RULES, limits=NO_LIMITS) as r:
        for number in range(2):
            _, task = r.play(r.request(f"bad{number}"))
            await task
        backend.on_open = None
        await asyncio.sleep(5.0)
        clients = [r.play(r.request(f"r{number}", stream=False)) for number in range(2)]
        await asyncio.sleep(4.9)
        assert backend.ids[2:] == ["r0"]
        await asyncio.sleep(0.2)
        assert backend.ids[2:] == ["r0", "r1"]
        backend.streams[2].end()
        await asyncio.sleep(0.1)
        assert r.dispatcher.replicas["scripted-0"].health.breaker.state == "closed", "late is not never"
        backend.streams[3].end()
        for _, task in clients:
            await task


@virtual
async def test_a_failed_trial_opens_it_again_for_longer() -> None:
    backend = ScriptedBackend(slots=4, on_open=lambda stream: stream.fail(BackendError("broke")))
    async with rig(backend, rules=RULES) as r:
        for number in range(2):
            _, task = r.play(r.request(f"bad{number}"))
            await task
        await asyncio.sleep(5.0)
        _, task = r.play(r.request("trial"))
        await task
        refused, task = r.play(r.request("again"))
        await task
        assert isinstance(refused.error, BackendUnavailable)
        assert refused.error.retry_after_s == 10.0


@virtual
async def test_who_waits_when_the_last_one_opens_is_told_at_once() -> None:
    backend = ScriptedBackend(slots=1)
    async with rig(backend, rules=BreakerRules(1, 5.0, 60.0), limits=NO_LIMITS) as r:
        failing, failing_task = r.play(r.request("failing"))
        waiting, waiting_task = r.play(r.request("waiting"))
        (await backend.got(0)).fail(BackendError("broke"), free=False)
        await failing_task
        await waiting_task
    assert isinstance(failing.error, BackendError)
    assert isinstance(waiting.error, BackendUnavailable)
    assert backend.ids == ["failing"]


@virtual
async def test_old_requests_that_end_while_it_is_tried_out_change_nothing() -> None:
    backend = ScriptedBackend(slots=8)
    async with rig(backend, rules=RULES, limits=NO_LIMITS) as r:
        old = [r.play(r.request(f"old{number}")) for number in range(4)]
        await backend.got(3)
        for stream in backend.streams[:2]:
            stream.fail(BackendError("broke"))
        await asyncio.sleep(5.1)
        trial, trial_task = r.play(r.request("trial"))
        await backend.got(4)
        for stream in backend.streams[2:4]:
            stream.fail(BackendError("old news"))
        await asyncio.sleep(0.1)
        backend.streams[4].say("ok")
        backend.streams[4].end()
        await trial_task
        assert trial.complete
        assert r.dispatcher.replicas["scripted-0"].health.breaker.state == "closed"
        for _, task in old:
            await task


@virtual
async def test_the_budget_is_for_the_pool() -> None:
    a, b = pair(50, 40)
    a.on_open = lambda stream: stream.fail(BackendError("broke"))
    b.on_open = answer("ok")
    async with rig(a, b, routing=RoutingConfig(retry_share=0.1)) as r:
        clients = []
        for number in range(60):
            client, task = r.play(r.request(f"r{number}"))
            await task
            clients.append(client)
    served = sum(client.complete for client in clients)
    assert 20 <= served <= 20 + 0.1 * 60 + 1
    assert all(client.complete for client in clients[:20])


@virtual
async def test_a_client_that_leaves_is_no_failure() -> None:
    backend = ScriptedBackend(slots=8)
    async with rig(backend, rules=RULES, limits=NO_LIMITS) as r:
        client, task = r.play(r.request("leaves"))
        await backend.got(0)
        client.leave()
        await task
        assert r.dispatcher.replicas["scripted-0"].health.breaker.failures == 0
    assert r.recorder.attempts == [("scripted-0", "left", False)]


@virtual
async def test_a_limit_of_time_is_the_engines_failure_only_after_its_silence() -> None:
    backend = ScriptedBackend(slots=8)
    routing = RoutingConfig(breaker_silence_s=10.0)
    async with rig(backend, rules=RULES, routing=routing) as r:
        health = r.dispatcher.replicas["scripted-0"].health
        for limit_s, failures in ((9.9, 0), (10.1, 1)):
            limits = TimeLimits(request_s=limit_s, idle_s=None)
            client, task = r.play(r.request(limits=limits))
            await task
            assert isinstance(client.error, DeadlineExceeded)
            assert health.breaker.failures == failures
    assert [result for _, result, _ in r.recorder.attempts] == ["left", "failed"]


@virtual
async def test_preemption_is_no_attempt() -> None:
    backend = ScriptedBackend(slots=1)
    async with rig(backend, limits=NO_LIMITS) as r:
        client, task = r.play(r.request("one"))
        await backend.got(0)
        assert client.handle is not None
        client.handle.preempt()
        again = await backend.got(1)
        again.say("ok")
        again.end()
        await task
    assert r.recorder.ends("one") == [(Outcome.COMPLETED, "stop")]
    assert r.recorder.attempts == [("scripted-0", "answered", False)]
