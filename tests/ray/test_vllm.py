"""vLLM's engine in a Ray replica: what runs on GPUs, here by vLLM's CPU build.

Needs Ray in the environment of `make vllm-env` (docs/scaling.md says how to put it there).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from llm_runtime.bench.ray_bed import ray_bed
from tests.ray.checks import check_counts
from tests.ray.conftest import Bed
from tests.support.http import Stream, ask, chat_body, connected, get, post

ENVIRONMENT = Path(__file__).parents[2] / ".venv-vllm"
HAS_BOTH = any(ENVIRONMENT.glob("lib/python3*/site-packages/ray")) and any(
    ENVIRONMENT.glob("lib/python3*/site-packages/vllm")
)

pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not HAS_BOTH, reason="no environment with vLLM and Ray"),
]

MODEL = "smollm2-135m"
NUM_SLOTS = 4
TOKENS = 16
SETTINGS = {
    "engines.backend": "vllm-inprocess",
    "engines.native_backend_concurrency": str(NUM_SLOTS),
    "engines.vllm.max_model_len": "512",
    "engines.vllm.extra_arguments": "--enforce-eager",
    "telemetry.gpu_poll_interval_s": "0",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    python = str(ENVIRONMENT / "bin" / "python")
    async with ray_bed(SETTINGS, (1,), {"VLLM_CPU_KVCACHE_SPACE": "1"}, python=python) as running:
        yield Bed(running)


async def test_counts_are_exact_and_the_same_streamed_and_whole(bed: Bed) -> None:
    await check_counts(bed, MODEL)


async def test_the_engine_works_on_several_requests_at_once(bed: Bed) -> None:
    """More than there are slots: all end, and the engine is seen full."""
    body = post(chat_body(MODEL, max_tokens=TOKENS, ignore_eos=True))
    asking = asyncio.gather(*(ask(bed.port, body) for _ in range(2 * NUM_SLOTS)))
    most = 0
    async with asyncio.timeout(120):
        while not asking.done():
            most = max(most, *(taken for _, taken in (await bed.engines()).values()))
            await asyncio.sleep(0.02)
    replies = await asking
    assert [reply.json()["usage"]["completion_tokens"] for reply in replies] == [TOKENS] * 2 * NUM_SLOTS
    assert most == NUM_SLOTS


async def test_who_leaves_frees_the_engine_s_slot(bed: Bed) -> None:
    body = chat_body(MODEL, stream=True, max_tokens=450, ignore_eos=True)
    for _ in range(NUM_SLOTS):
        async with connected(bed.port) as connection:
            await connection.send(post(body))
            await connection.head()
            await connection.event(Stream())
            connection.reset()
    await asyncio.wait_for(bed.at_rest(), 5.0)  # to their ends it would be many times that
    assert (await get(bed.port, "/metrics")).json()["active_requests"] == 0


async def test_the_engine_s_own_refusal_comes_through(bed: Bed) -> None:
    body = chat_body(MODEL, messages=[{"role": "user", "content": "long " * 2000}])
    reply = await ask(bed.port, post(body))
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
