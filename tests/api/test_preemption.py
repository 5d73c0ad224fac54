"""Preemption from the outside: who gives way to whom, and what its client sees."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from llm_runtime.core.outcome import Outcome
from tests.support.http import Connection, Stream, chat_body, connected, post
from tests.support.scripted import MODEL, ScriptedBackend
from tests.support.server import MOCK, Served, serve

URGENT, BATCH = 1, 8


def settings(preempt: str) -> dict[str, str]:
    return {**MOCK, "scheduling.policy": "priority", "scheduling.preempt": preempt}


def chat(priority: int) -> bytes:
    return post(chat_body(MODEL, priority=priority, stream=True))


@dataclass(frozen=True)
class Stage:
    """One slot, and two clients that both want it."""

    backend: ScriptedBackend
    server: Served
    low: Connection
    high: Connection


@asynccontextmanager
async def staged(preempt: str) -> AsyncIterator[Stage]:
    backend = ScriptedBackend(slots=1)
    async with (
        serve(settings(preempt), backend=backend) as server,
        connected(server.port) as low,
        connected(server.port) as high,
    ):
        yield Stage(backend, server, low, high)


async def test_a_running_stream_of_the_batch_class_ends_with_an_error_event_where_configured() -> None:
    async with staged("batch") as stage:
        backend, server, low, high = stage.backend, stage.server, stage.low, stage.high
        await low.send(chat(BATCH))
        (await backend.got(0)).say("a")
        assert (await low.head()).status == 200
        stream = Stream()
        await low.event(stream)
        await high.send(chat(URGENT))
        async for _ in low.events(stream):
            pass
        assert stream.error is not None
        assert stream.error["code"] == "preempted"
        assert not stream.done  # no end that looks like one
        engine = await backend.got(1)
        assert engine.request.priority == URGENT
        engine.say("b")
        engine.end()
        assert (await high.streamed())[1].text == "b"
        await server.at_rest()
    assert sorted(record.outcome for record in server.recorder.records) == [
        Outcome.COMPLETED, Outcome.EVICTED,
    ]  # fmt: skip


@pytest.mark.parametrize("preempt", ["prompts", "batch"])
async def test_without_a_token_it_goes_back_and_is_served_later(preempt: str) -> None:
    async with staged(preempt) as stage:
        backend, low, high = stage.backend, stage.low, stage.high
        await low.send(chat(BATCH))
        await backend.got(0)
        await high.send(chat(URGENT))
        await backend.cancelled(backend.streams[0])
        for number, priority in ((1, URGENT), (2, BATCH)):
            engine = await backend.got(number)
            assert engine.request.priority == priority
            engine.say(f"answer {number}")
            engine.end()
        assert (await high.streamed())[1].text == "answer 1"
        _, stream = await low.streamed()
        assert (stream.text, stream.error, stream.done) == ("answer 2", None, True)


@pytest.mark.parametrize("preempt", ["prompts", "never"])
async def test_what_runs_is_left_alone_where_nothing_else_is_configured(preempt: str) -> None:
    async with staged(preempt) as stage:
        backend, server, low, high = stage.backend, stage.server, stage.low, stage.high
        await low.send(chat(BATCH))
        (await backend.got(0)).say("a")
        assert (await low.head()).status == 200
        await high.send(chat(URGENT))
        await server.accepted(2)
        backend.streams[0].end()
        stream = Stream()
        async for _ in low.events(stream):
            pass
        assert (stream.text, stream.error, stream.done) == ("a", None, True)
        (await backend.got(1)).end()
        assert (await high.streamed())[1].done
