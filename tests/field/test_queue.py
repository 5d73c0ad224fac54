"""F26, F52: who waits, who runs, and what becomes of those who are gone."""

from __future__ import annotations

import pytest

from llm_runtime.core.outcome import Outcome
from tests.engines.openai.upstreams import asked, fake_upstream, gateway, sing
from tests.engines.upstream.stubs import Peer
from tests.support.http import Connection, ask, chat_body, connected, get, post
from tests.support.recorder import Changes
from tests.support.scripted import MODEL, ScriptedBackend
from tests.support.server import serve

WAYS = (Connection.close, Connection.reset)


def named(name: str, *, stream: bool = False) -> bytes:
    return post(chat_body("m", user=name, stream=stream), headers={"x-request-id": name})


@pytest.mark.parametrize("policy", ["fifo", "priority", "fair"])
async def test_f26_who_left_the_queue_never_reaches_the_upstream(policy: str) -> None:
    gate, seen = Changes(), []

    async def answer(peer: Peer, request: bytes) -> None:
        seen.append(asked(request)["user"])
        gate.note()
        if seen[-1] == "A":
            await gate.until(lambda: "over" in seen, "A is over")
        await sing(peer, request)

    settings = {"engines.native_backend_concurrency": "1", "admission.max_queue_size": "10",
                "scheduling.policy": policy}  # fmt: skip
    async with fake_upstream(answer) as fake, gateway(fake, settings) as served:
        async with connected(served.port) as first, connected(served.port) as late:
            await first.send(named("A"))
            await gate.until(lambda: seen == ["A"], "A runs")
            queued = []
            for number in range(10):
                connection = await Connection.open(served.port)
                await connection.send(named(f"B{number}", stream=number % 2 == 0))
                await served.accepted(2 + number)
                queued.append(connection)
            assert (await get(served.port, "/metrics")).json()["queue_size"] == 10
            for number, connection in enumerate(queued):
                WAYS[number % 2](connection)
            await served.settled(10)
            assert (await get(served.port, "/metrics")).json()["queue_size"] == 0
            await late.send(named("C"))
            await served.accepted(12)
            seen.append("over")
            gate.note()
            assert (await first.reply()).status == 200
            assert (await late.reply()).status == 200
        await served.at_rest()
        assert [name for name in seen if name != "over"] == ["A", "C"]
        outcomes = [record.outcome for record in served.recorder.records]
        assert outcomes.count(Outcome.CANCELLED) == 10
        metrics = (await get(served.port, "/metrics")).json()
        assert (metrics["failed_count"], metrics["rejected_count"]) == (0, 0)
        text = (await get(served.port, "/metrics?format=prometheus")).body.decode()
        waits = [
            line for line in text.splitlines() if line.startswith("llm_runtime_queue_wait_seconds_count")
        ]
        assert sum(float(line.rsplit(" ", 1)[1]) for line in waits) == 2, "only who was dispatched has a wait"


async def test_f26_who_waits_too_long_is_told_and_not_run() -> None:
    backend = ScriptedBackend(slots=1)
    async with serve(backend=backend, limits__queue_timeout_s="0.2") as served:
        async with connected(served.port) as first:
            await first.send(post(chat_body(MODEL)))
            await backend.got(0)
            for stream in (False, True):
                got = await ask(served.port, post(chat_body(MODEL, stream=stream)))
                assert (got.status, got.error["code"]) == (503, "queue_timeout")
                assert int(got.headers["retry-after"]) >= 1
            backend.streams[0].end()
            assert (await first.reply()).status == 200
        assert len(backend.streams) == 1


async def test_f26_a_batch_window_lets_go_of_who_left() -> None:
    """Two that came together make the window wait for more; one of them leaves meanwhile."""
    backend = ScriptedBackend(slots=4, static=True)
    async with serve(backend=backend, scheduling__batch_timeout_ms="200") as served:
        async with connected(served.port) as busy:
            await busy.send(post(chat_body(MODEL), headers={"x-request-id": "busy"}))
            engine = await backend.got(0)
            gone = await Connection.open(served.port)
            await gone.send(post(chat_body(MODEL), headers={"x-request-id": "gone"}))
            await served.accepted(2)
            async with connected(served.port) as stays:
                await stays.send(post(chat_body(MODEL), headers={"x-request-id": "stays"}))
                await served.accepted(3)
                gone.reset()
                await served.recorder.ended("gone")
                engine.end()
                (await backend.got(1)).end()
                assert (await stays.reply()).status == 200
        assert backend.ids == ["busy", "stays"]


@pytest.mark.parametrize("value", [10**9, -1, "high", 2.5, 10, True])
async def test_f52_e_priorities_that_are_none_are_refused(value: object) -> None:
    async with serve(backend=ScriptedBackend()) as served:
        for stream in (False, True):
            got = await ask(served.port, post(chat_body(MODEL, priority=value, stream=stream)))
            assert (got.status, got.error["param"]) == (400, "priority")


async def test_f52_e_null_is_the_default_priority() -> None:
    backend = ScriptedBackend(on_open=lambda engine: engine.end())
    async with serve(backend=backend) as served:
        assert (await ask(served.port, post(chat_body(MODEL, priority=None)))).status == 200
        assert backend.streams[0].request.priority == 5


async def test_f52_queue_waits_are_told_for_each_class() -> None:
    backend = ScriptedBackend(on_open=lambda engine: engine.end())
    async with serve(backend=backend) as served:
        for priority in (0, 5, 9):
            await ask(served.port, post(chat_body(MODEL, priority=priority)))
        text = (await get(served.port, "/metrics?format=prometheus")).body.decode()
        for name in ("interactive", "standard", "batch"):
            assert any(
                line.startswith("llm_runtime_queue_wait_seconds_count") and f'priority_class="{name}"' in line
                for line in text.splitlines()
            )
