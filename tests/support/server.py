"""A real uvicorn on a port of its own, in the test's loop, around an application built from settings."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn

from llm_runtime.main import build
from llm_runtime.runtime.runtime import Runtime
from llm_runtime.settings import load_settings

MOCK: Mapping[str, str] = {
    "engines.backend": "mock",
    "engines.mock.prefill_latency_ms": "2",
    "engines.mock.decode_latency_ms": "1",
    "telemetry.log_level": "error",
    "telemetry.gpu_poll_interval_s": "0",
}


@dataclass(frozen=True)
class Served:
    """A running server: where it listens, and the runtime inside it, for looking at counters."""

    base_url: str
    port: int
    model: str
    runtime: Runtime


@asynccontextmanager
async def serve(overrides: Mapping[str, str] = MOCK, **more: str) -> AsyncIterator[Served]:
    """Serves until the block is left. `more`: settings with `__` for the dot."""
    wanted = {**overrides, **{name.replace("__", "."): value for name, value in more.items()}}
    built = build(load_settings(wanted, {}))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = uvicorn.Config(
        built.app, loop="none", http="httptools", log_config=None, lifespan="on", ws="none",
        timeout_graceful_shutdown=5,
    )  # fmt: skip
    server = uvicorn.Server(config)
    ready = asyncio.Event()
    built.runtime.on_ready = ready.set
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    try:
        waiting = asyncio.get_running_loop().create_task(ready.wait())
        await asyncio.wait({task, waiting}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert ready.is_set(), "the server did not become ready"
        model = built.runtime.pools[0].model
        yield Served(f"http://127.0.0.1:{port}", port, model, built.runtime)
    finally:
        server.should_exit = True
        await task
        listener.close()
