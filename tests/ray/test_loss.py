"""Engines and nodes that are lost or taken away while they work: nothing is lost without a word."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from tests.ray.conftest import PATIENCE_S, Bed
from tests.support.http import Stream, chat_body, connected, post

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="module")]

MODEL = "mock"
TOKENS = 150


@dataclass
class Told:
    """What one client saw. begun: set with its first token."""

    begun: asyncio.Event
    stream: Stream
    replica: str = ""


async def stream_to_the_end(bed: Bed, told: Told) -> None:
    body = chat_body(MODEL, stream=True, max_tokens=TOKENS, ignore_eos=True)
    async with connected(bed.port) as connection:
        await connection.send(post(body))
        head = await connection.head()
        assert head.status == 200
        told.replica = head.headers.get("server-timing", "")
        async for stream in connection.events(told.stream):
            if stream.text:
                told.begun.set()
    told.begun.set()


async def start(bed: Bed, count: int) -> tuple[list[Told], list[asyncio.Task[None]]]:
    tolds = [Told(asyncio.Event(), Stream()) for _ in range(count)]
    tasks = [asyncio.ensure_future(stream_to_the_end(bed, told)) for told in tolds]
    return tolds, tasks


def check_every_end(tolds: list[Told]) -> tuple[int, int]:
    """How many were completed, how many were told of an error; there is no third way."""
    completed = [told for told in tolds if told.stream.done]
    failed = [told for told in tolds if not told.stream.done]
    for told in failed:
        error = told.stream.error
        assert error is not None, "a stream that was cut without a word"
        assert error["code"] == "backend_crashed"
    return len(completed), len(failed)


async def test_an_engine_is_killed_under_streams(mock_bed: Bed) -> None:
    """Six streams for four slots: those in the killed engine are told, those that wait run elsewhere."""
    await mock_bed.until_ready(2)
    tolds, tasks = await start(mock_bed, 6)
    async with asyncio.timeout(PATIENCE_S):
        for told in tolds[:4]:
            await told.begun.wait()
    await mock_bed.command("kill-engine 0")
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
    assert check_every_end(tolds) == (4, 2)
    await mock_bed.at_rest()
    await mock_bed.until_ready(2)  # Ray has started another


async def test_a_node_is_lost_under_streams_and_another_one_joins(mock_bed: Bed) -> None:
    await mock_bed.until_ready(2)
    tolds, tasks = await start(mock_bed, 6)
    async with asyncio.timeout(PATIENCE_S):
        for told in tolds[:4]:
            await told.begun.wait()
    await mock_bed.command("kill-node 1")
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
    assert check_every_end(tolds) == (4, 2)
    await mock_bed.at_rest()
    assert await mock_bed.num_ready() == 1
    await mock_bed.command("add-node 1")
    await mock_bed.until_ready(2)


async def test_scaling_down_loses_no_stream(mock_bed: Bed) -> None:
    await mock_bed.until_ready(2)
    tolds, tasks = await start(mock_bed, 4)
    async with asyncio.timeout(PATIENCE_S):
        for told in tolds:
            await told.begun.wait()
    before = await mock_bed.engine_pids()
    await mock_bed.command("scale 1")
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
    assert check_every_end(tolds) == (4, 0)
    await mock_bed.until_ready(1)
    async with asyncio.timeout(PATIENCE_S):
        # The other one is stopping.
        while len(after := await mock_bed.engine_pids()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert after < before, "one is left as it was; none was restarted"
