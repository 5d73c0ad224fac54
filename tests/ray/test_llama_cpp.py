"""The embedded model in a Ray replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from llm_runtime.bench.ray_bed import ray_bed
from llm_runtime.engines import proctable
from tests.ray.checks import check_counts
from tests.ray.conftest import Bed
from tests.support.http import Stream, ask, chat_body, connected, post

pytestmark = [pytest.mark.ray, pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

MODEL = "smollm2-135m"
SETTINGS = {
    "engines.backend": "llama.cpp",
    "engines.native_backend_concurrency": "2",
    "engines.llama_cpp.n_threads": "1",
    "engines.llama_cpp.n_ctx": "512",
    "telemetry.gpu_poll_interval_s": "0",
}


def engine_processes() -> set[int]:
    """Of llama.cpp hosts on this machine."""
    found = set()
    for pid in proctable.table():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"llm_runtime.engines.llama_cpp.host" in words and b"llm_runtime.engines.guard" not in words:
            found.add(pid)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    before = engine_processes()
    async with ray_bed(SETTINGS, nodes=(1,)) as running:
        started = engine_processes() - before
        assert started
        yield Bed(running)
    assert not started & engine_processes(), "an engine outlived its cluster"


async def test_counts_are_the_engine_s(bed: Bed) -> None:
    await check_counts(bed, MODEL)


async def test_the_engine_s_own_refusal_comes_through(bed: Bed) -> None:
    reply = await ask(
        bed.port, post(chat_body(MODEL, messages=[{"role": "user", "content": "long " * 2000}]))
    )
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"


async def test_who_leaves_frees_the_engine_s_slot(bed: Bed) -> None:
    body = chat_body(MODEL, stream=True, max_tokens=400, ignore_eos=True)
    for _ in range(4):  # more than there are slots
        async with connected(bed.port) as connection:
            await connection.send(post(body))
            await connection.head()
            await connection.event(Stream())
            connection.reset()
    await asyncio.wait_for(bed.at_rest(), 10.0)
    reply = await ask(bed.port, post(chat_body(MODEL, max_tokens=2)))
    assert reply.status == 200
