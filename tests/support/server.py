"""A real uvicorn on a port of its own, in the test's loop, around an application built from settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from llm_runtime.engines.base import Backend
from llm_runtime.main import build
from llm_runtime.runtime.runtime import Runtime
from llm_runtime.serving import listen, server_config
from llm_runtime.settings import load_settings
from tests.support.recorder import PATIENCE_S, Recorder

MOCK: Mapping[str, str] = {
    "engines.backend": "mock",
    "engines.mock.prefill_latency_ms": "2",
    "engines.mock.decode_latency_ms": "1",
    "telemetry.log_level": "error",
    "telemetry.gpu_poll_interval_s": "0",
}


@dataclass(frozen=True)
class Served:
    """A running server: where it listens, and what is inside it, for looking at counters.

    faults: what the loop complained of (exceptions nobody retrieved); checked when the block is left.
    """

    base_url: str
    port: int
    model: str
    runtime: Runtime
    recorder: Recorder
    server: uvicorn.Server
    faults: list[str]

    @property
    def num_taken_slots(self) -> int:
        return sum(
            replica.num_taken for pool in self.runtime.pools for replica in pool.dispatcher.replicas.values()
        )

    @property
    def num_connections(self) -> int:
        return len(self.server.server_state.connections)

    async def accepted(self, num_requests: int) -> None:
        """Until so many were let in, in all."""
        recorder = self.recorder
        await recorder.until(lambda: len(recorder.accepted_ids) >= num_requests, f"{num_requests} requests")

    async def settled(self, num_requests: int) -> None:
        """Until so many have ended, in all."""
        recorder = self.recorder
        await recorder.until(lambda: len(recorder.records) >= num_requests, f"{num_requests} ends")

    async def at_rest(self) -> None:
        """Until nothing is in flight, every slot is free and every ASGI task has ended."""
        state = self.server.server_state
        await _turns(lambda: not (self.runtime.num_active or self.num_taken_slots or state.tasks))
        self.recorder.assert_settled_once()

    async def no_connections(self) -> None:
        """Until the server knows that all of its clients are gone."""
        await _turns(lambda: not self.num_connections)


@asynccontextmanager
async def serve(
    overrides: Mapping[str, str] = MOCK, *, backend: Backend | None = None, **more: str
) -> AsyncIterator[Served]:
    """Serves until the block is left. `more`: settings with `__` for the dot. `backend`: instead of the
    configured one."""
    wanted = {**overrides, **{name.replace("__", "."): value for name, value in more.items()}}
    recorder = Recorder()
    built = build(load_settings(wanted, {}), backend=backend, listeners=[recorder])
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = server_config(built.app, built.settings, built.events.refused, loop="none")
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    faults: list[str] = []
    loop.set_exception_handler(lambda _, context: faults.append(_fault(context)))
    ready = asyncio.Event()
    built.runtime.on_ready = ready.set
    task = loop.create_task(server.serve(sockets=[listener]))
    try:
        await _turns(lambda: server.started or task.done())
        assert server.started, "the server did not start"
        if backend is None:
            async with asyncio.timeout(60):
                await ready.wait()
        model = built.runtime.pools[0].model
        yield Served(f"http://127.0.0.1:{port}", port, model, built.runtime, recorder, server, faults)
    finally:
        server.should_exit = True
        try:
            await task
        finally:
            listener.close()
    assert not faults, faults


async def _turns(condition: Callable[[], bool]) -> None:
    """For books that have no event: uvicorn's, and slots. Each turn of the loop looks again."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def _fault(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"
