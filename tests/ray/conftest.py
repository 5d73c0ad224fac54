"""One small Ray cluster for all tests of a module: the application with the mock engine, or a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from llm_runtime.bench.ray_bed import RayBed, ray_bed
from tests.support.http import get

PATIENCE_S = 60.0
MOCK = {
    "engines.backend": "mock",
    "engines.mock.prefill_latency_ms": "5",
    "engines.mock.decode_latency_ms": "10",
    "engines.native_backend_concurrency": "2",
    "ray.health_check_period_s": "1",
    "admission.max_queue_size": "4",
    "limits.keep_alive_interval_s": "2",  # so that a client of ten seconds' patience sees a loss through
    "telemetry.gpu_poll_interval_s": "0",
}


class Bed:
    """A cluster as tests see it: its port, and what the ingress says of its engines."""

    def __init__(self, bed: RayBed) -> None:
        self.port = int(bed.url.rpartition(":")[2])
        self.command = bed.command

    async def engines(self) -> dict[str, tuple[str, int]]:
        """State and taken slots of every seat, by its name."""
        (pool,) = (await get(self.port, "/load")).json()["pools"]
        return {
            name: (replica["state"], replica["num_taken_slots"]) for name, replica in pool["replicas"].items()
        }

    async def engine_pids(self) -> set[int]:
        return {pid for node in (await self.command("engines"))["engines"] for pid in node}

    async def num_ready(self) -> int:
        return sum(state == "ready" for state, _ in (await self.engines()).values())

    async def until_ready(self, count: int) -> None:
        """Another process has no event for us, so it is asked."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.num_ready() != count:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def at_rest(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while any(taken for _, taken in (await self.engines()).values()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mock_bed() -> AsyncIterator[Bed]:
    """Two nodes beside the head, an engine of two slots on each."""
    async with ray_bed({**MOCK, "ray.min_replicas": "2"}, nodes=(1, 1)) as bed:
        yield Bed(bed)


@pytest.fixture
def patience_s() -> float:
    return PATIENCE_S
