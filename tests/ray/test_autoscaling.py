"""Ray's own autoscaling of the engines: they come under load, and go again without losing anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from llm_runtime.bench.ray_bed import ray_bed
from tests.ray.conftest import MOCK, PATIENCE_S, Bed
from tests.support.http import Stream, ask, chat_body, connected, post

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="module")]

MODEL = "mock"
MAX_ENGINES = 3
TOKENS = 60
CLIENTS = 8
SETTINGS = {
    **MOCK,
    "admission.max_queue_size": "64",
    "ray.max_replicas": str(MAX_ENGINES),
    "ray.target_ongoing_requests": "1",
    "ray.upscale_delay_s": "0.5",
    "ray.downscale_delay_s": "2",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    async with ray_bed(SETTINGS, nodes=(MAX_ENGINES,)) as running:
        yield Bed(running)


async def keep_asking(bed: Bed, enough: asyncio.Event) -> list[Stream]:
    """One client: stream after stream."""
    ended = []
    while not enough.is_set():
        async with connected(bed.port) as connection:
            await connection.send(post(chat_body(MODEL, stream=True, max_tokens=TOKENS, ignore_eos=True)))
            head, stream = await connection.streamed()
        assert head.status == 200
        ended.append(stream)
    return ended


async def all_work(bed: Bed) -> bool:
    return all(taken for state, taken in (await bed.engines()).values() if state == "ready")


async def test_engines_come_with_the_load_and_go_with_it(bed: Bed) -> None:
    assert await bed.num_ready() == 1
    enough = asyncio.Event()
    clients = [asyncio.ensure_future(keep_asking(bed, enough)) for _ in range(CLIENTS)]
    try:
        await bed.until_ready(MAX_ENGINES)
        async with asyncio.timeout(PATIENCE_S):
            while not await all_work(bed):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    finally:
        enough.set()
        ended = [stream for one in await asyncio.gather(*clients) for stream in one]
    assert len(ended) >= CLIENTS
    assert all(stream.done for stream in ended)
    await bed.at_rest()
    await bed.until_ready(1)
    async with asyncio.timeout(PATIENCE_S):
        while len(await bed.engine_pids()) > 1:  # noqa: ASYNC110 - the others are stopping
            await asyncio.sleep(0.1)
    reply = await ask(bed.port, post(chat_body(MODEL, max_tokens=2)))
    assert reply.status == 200
