"""A new version of the application while a stream runs in the old one."""

from __future__ import annotations

import asyncio

import pytest

from llm_runtime.bench.ray_bed import ray_bed
from tests.ray.conftest import MOCK, PATIENCE_S, Bed
from tests.support.http import Stream, ask, chat_body, connected, get, post

pytestmark = pytest.mark.ray

MODEL = "mock"
TOKENS = 150
SETTINGS = {
    **MOCK,
    "engines.mock.decode_latency_ms": "100",  # 15 s in all
    "limits.drain_timeout_s": "0.5",
    "ray.num_ingress_cpus": "0.5",  # so that there is room for the old one and the new one
}


async def test_a_long_stream_outlives_the_ingress_it_came_through() -> None:
    """It takes longer than the runtime itself would wait for it."""
    async with ray_bed(SETTINGS, nodes=(2,)) as running:
        bed = Bed(running)
        body = chat_body(MODEL, stream=True, max_tokens=TOKENS, ignore_eos=True)
        async with connected(bed.port) as connection, asyncio.timeout(2 * PATIENCE_S):
            await connection.send(post(body))
            assert (await connection.head()).status == 200
            stream = Stream()
            await connection.event(stream)
            await bed.command("set limits.keep_alive_interval_s 3")
            async for _ in connection.events(stream):
                pass
            assert stream.done
            assert stream.chunks[-1]["choices"][0]["finish_reason"] == "length"
            while (await get(bed.port, "/metrics")).json()["request_count"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # the old ingress has counted one
        assert (await ask(bed.port, post(chat_body(MODEL, max_tokens=1)))).status == 200
