"""The engine program without a process of its own and without a real model."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn

from llm_runtime.engines.hf.service import Service
from tests.engines.hf.fake_model import FakeModel

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
PATIENCE_S = 10


@dataclass
class Running:
    client: httpx2.AsyncClient
    model: FakeModel
    path: str

    async def ask(self, path: str = CHAT, run: str | None = None, **body: Any) -> httpx2.Response:
        content = {"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}
        query = f"?run={run}" if run else ""
        return await self.client.post(path + query, json={"model": "m", **content, **body})

    async def started(self) -> None:
        """Until the model works on something new."""
        assert await asyncio.to_thread(self.model.started.wait, PATIENCE_S)
        self.model.started.clear()

    async def steps(self) -> int:
        steps: int = (await self.client.get("/health")).json()["steps"]
        return steps


@asynccontextmanager
async def serving(path: str) -> AsyncIterator[Running]:
    """The engine program's HTTP side on that Unix socket, in this loop, until the block is left."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    model = FakeModel()
    with ThreadPoolExecutor(1) as worker:
        service = Service("m", model, worker, default_max_tokens=4)
        config = uvicorn.Config(
            service, lifespan="off", log_config=None, loop="none", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        transport = httpx2.AsyncHTTPTransport(uds=path)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://engine", timeout=PATIENCE_S
        ) as client:
            yield Running(client, model, path)
        model.held = False
        server.should_exit = True
        await serving
