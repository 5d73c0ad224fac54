"""Slots: counted by leases, freed by the engine alone, suspect when it does not say so in time."""

from __future__ import annotations

import asyncio

import pytest

from llm_runtime.core.errors import BackendError, BackendUnavailable, InvalidRequest, ModelNotFound
from llm_runtime.core.lease import LeaseState
from llm_runtime.core.outcome import Outcome
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.base import BackendState
from tests.runtime.rig import rig, virtual
from tests.support.scripted import ScriptedBackend


@virtual
async def test_a_lease_runs_from_the_first_byte() -> None:
    async with rig() as r:
        _, task = r.play(r.request("one"))
        stream = await r.backend.got(0)
        states = [stream.lease.state]
        stream.say("a")
        await r.backend.pulled(stream, 1)
        await asyncio.sleep(0)
        states.append(stream.lease.state)
        stream.end()
        await task
        states.append(stream.lease.state)
    assert states == [LeaseState.GRANTED, LeaseState.RUNNING, LeaseState.FREE]


@virtual
async def test_an_unconfirmed_cancellation_keeps_the_slot_and_turns_suspect() -> None:
    async with rig(ScriptedBackend(slots=1), cancel_timeout_s=10) as r:
        r.backend.confirms_cancels = False
        client, task = r.play(r.request("gone"))
        stream = await r.backend.got(0)
        waiting, waiting_task = r.play(r.request("waiting"))
        client.leave()
        await task  # the client's end does not wait for the engine's
        replica = r.dispatcher.replicas["scripted-0"]
        await asyncio.sleep(9.9)
        assert (stream.lease.state, replica.suspect) == (LeaseState.CANCELLING, False)
        await asyncio.sleep(0.2)
        assert (stream.lease.state, replica.suspect) == (LeaseState.SUSPECT, True)
        assert r.recorder.suspects == ["gone"]
        assert r.dispatcher.num_free_slots == 0
        assert r.backend.ids == ["gone"]
        stream.confirm_cancel()
        assert not replica.suspect
        (await r.backend.got(1)).end()
        await waiting_task
        assert waiting.complete
    assert r.recorder.suspects == ["gone"]


@virtual
async def test_a_suspect_replica_is_asked_last() -> None:
    first, second = ScriptedBackend(slots=4, name="a"), ScriptedBackend(slots=1, name="b")
    async with rig(first, second, cancel_timeout_s=1) as r:
        first.confirms_cancels = False
        client, task = r.play(r.request("gone"))
        await first.got(0)
        client.leave()
        await asyncio.sleep(2)
        clients = [r.play(r.request(f"n{n}")) for n in range(2)]
        await second.got(0)
        await first.got(1)
        assert (first.ids, second.ids) == (["gone", "n1"], ["n0"])
        for stream in (*first.streams, *second.streams):
            stream.end()
        for _, task in clients:
            await task


@virtual
async def test_a_confirmed_cancellation_is_never_suspect() -> None:
    async with rig(cancel_timeout_s=1) as r:
        client, task = r.play(r.request("gone"))
        await r.backend.got(0)
        client.leave()
        await task
        await asyncio.sleep(100)
    assert r.recorder.suspects == []


@virtual
async def test_a_lease_is_freed_once_however_often_the_engine_says_so() -> None:
    async with rig(ScriptedBackend(slots=1)) as r:
        _, task = r.play(r.request("one"))
        stream = await r.backend.got(0)
        stream.end()
        second, second_task = r.play(r.request("two"))
        await task
        for _ in range(3):
            stream.lease.free()
        assert r.num_taken_slots == 1  # the second one's
        (await r.backend.got(1)).end()
        await second_task
        assert second.complete


@virtual
async def test_all_of_a_requests_slots_or_none() -> None:
    async with rig(ScriptedBackend(slots=3)) as r:
        _, small_task = r.play(r.request("small"))
        _, big_task = r.play(r.request("big", num_slots=3))
        (await r.backend.got(0)).say("x")
        assert r.backend.ids == ["small"]
        r.backend.streams[0].end()
        (await r.backend.got(1)).end()
        await asyncio.wait([small_task, big_task])
        with pytest.raises(InvalidRequest, match="at most 3"):
            r.runtime.check(r.request(num_slots=4))


@virtual
async def test_names_stay_unique_while_anybody_uses_them() -> None:
    async with rig(ScriptedBackend(slots=2)) as r:
        r.backend.confirms_cancels = False
        assert r.runtime.unique_id("id") == "id"
        client, task = r.play(r.request("id"))
        stream = await r.backend.got(0)
        assert r.runtime.unique_id("id") == "id-2"
        client.leave()
        await task
        # It has ended, but its slot goes by that name still.
        assert r.runtime.unique_id("id") == "id-2"
        _, other_task = r.play(r.request("id-2"))
        assert (await r.backend.got(1)).request.id == "id-2"
        await asyncio.sleep(0)
        assert r.runtime.unique_id("id") == "id-3"
        stream.confirm_cancel()
        assert r.runtime.unique_id("id") == "id"
        r.backend.streams[1].end()
        await other_task


@virtual
async def test_an_engine_that_goes_away_ends_what_it_had() -> None:
    async with rig() as r:
        clients = [r.play(r.request(stream=n % 2 == 0)) for n in range(2)]
        await r.backend.got(1)
        r.backend.become(BackendState.CRASHED, "it died")
        waiting, waiting_task = r.play(r.request("waiting"))
        for stream in r.backend.streams:
            stream.fail(BackendError("it died"))
        for client, task in clients:
            await task
            assert isinstance(client.error, BackendError)
        assert r.num_taken_slots == 0
        # Back-off: it will come again, so waiting makes sense.
        await asyncio.sleep(5)
        assert waiting.error is None
        r.backend.become(BackendState.READY)
        (await r.backend.got(2)).end()
        await waiting_task
        assert waiting.complete
    assert [state for _, state, _ in r.recorder.states] == ["ready", "crashed", "ready", "stopped"]


@pytest.mark.parametrize("state", [BackendState.FAILED, BackendState.STOPPED])
def test_waiting_for_an_engine_that_will_not_come_back_ends_at_once(state: BackendState) -> None:
    @virtual
    async def run() -> None:
        async with rig(ScriptedBackend(slots=1)) as r:
            r.backend.starts_ready = False
            r.backend.become(BackendState.STARTING)
            early = [r.play(r.request(f"early{n}")) for n in range(3)]
            await r.recorder.until(lambda: r.dispatcher.num_waiting == 3, "three in the queue")
            r.backend.become(state, "the model file is broken")
            for client, task in early:
                await task
                assert isinstance(client.error, BackendUnavailable)
                assert "the model file is broken" in client.error.message
            late, task = r.play(r.request("late"))
            await task
            assert isinstance(late.error, BackendUnavailable)
            assert "the model file is broken" in str(r.runtime.readiness().reason)
            assert r.dispatcher.snapshot().num_waiting == 0
        assert r.recorder.ends("late") == [(Outcome.FAILED, "backend_unavailable")]

    run()


@virtual
async def test_static_engines_get_one_batch_at_a_time() -> None:
    async with rig(ScriptedBackend(slots=4, static=True)) as r:
        tasks = [r.play(r.request(f"r{n}"))[1] for n in range(6)]
        first = await r.backend.got(0)
        await asyncio.sleep(1)
        assert r.backend.batches == [["r0"]]
        first.end()
        await r.backend.got(4)
        assert r.backend.batches[1] == ["r1", "r2", "r3", "r4"]
        for stream in r.backend.streams[1:4]:
            stream.end()
        await asyncio.sleep(1)
        assert len(r.backend.batches) == 2  # not before the last of a batch has ended
        r.backend.streams[4].end()
        (await r.backend.got(5)).end()
        await asyncio.wait(tasks)
    assert r.recorder.batches == [("scripted-0", 1), ("scripted-0", 4), ("scripted-0", 1)]


@virtual
async def test_models_and_endpoints_that_are_not_served() -> None:
    async with rig() as r:
        with pytest.raises(ModelNotFound) as caught:
            r.runtime.pool_for("x" * 500, EndpointKind.CHAT)
        assert len(caught.value.message) < 200
        with pytest.raises(InvalidRequest) as other:
            r.runtime.pool_for("scripted", EndpointKind.EMBEDDINGS)
        assert (other.value.param, other.value.reason) == ("model", "unsupported_endpoint")
