"""What becomes of the requests of an engine that hangs, while it takes its time to die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from llm_runtime.core.clock import SystemClock
from llm_runtime.core.errors import BackendCrashed
from llm_runtime.core.lease import Lease
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import Work
from llm_runtime.engines.llama_cpp.life import EngineLife
from llm_runtime.engines.process import ExitReport, ProcessSpec
from llm_runtime.engines.stream_run import OpenStream
from llm_runtime.engines.upstream import Upstream
from tests.engines.driving import make_request
from tests.engines.upstream.stubs import CHUNKED, Peer, chunk, stub

ROLE = b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
TOKEN = ROLE + b'"delta":{"content":"Once"},"finish_reason":null}]}\n\n'


class Process:
    """Stands in for `EngineProcess`: dies when the test says so, not when it is killed."""

    def __init__(self) -> None:
        self.spec = ProcessSpec("hung", (), {}, Path())
        self.dead: asyncio.Future[ExitReport] = asyncio.get_running_loop().create_future()
        self.num_kills = 0

    @property
    def alive(self) -> bool:
        return not self.dead.done()

    def kill(self) -> None:
        self.num_kills += 1

    def die(self) -> None:
        self.dead.set_result(ExitReport("hung", 137, ()))

    async def wait(self) -> ExitReport:
        return await asyncio.shield(self.dead)


async def one_token_then_nothing(peer: Peer) -> None:
    while request := await peer.request():
        if b"/chat/completions" in request:
            await peer.send(CHUNKED + chunk(TOKEN))
        await peer.closed()


@dataclass
class Scene:
    life: EngineLife
    process: Process
    ending: asyncio.Task[ExitReport]
    num_freed: int = 0

    def open(self, request: RuntimeRequest) -> OpenStream:
        return self.life.open(Work(request, Lease(request.id, "r0", 1, 0.0, self.freed)))

    def freed(self, lease: Lease) -> None:
        self.num_freed += 1

    async def dies(self) -> None:
        self.process.die()
        await self.ending


@asynccontextmanager
async def hanging_engine() -> AsyncIterator[Scene]:
    process = Process()
    async with stub(one_token_then_nothing) as server, Upstream(server.address) as upstream:
        life = EngineLife(process, upstream, SystemClock(), 2048)  # type: ignore[arg-type]
        ending = asyncio.create_task(life.wait())
        try:
            yield Scene(life, process, ending)
        finally:
            if not process.dead.done():
                process.die()
            await ending


def chat() -> RuntimeRequest:
    return make_request("m", stream=True)


async def test_a_stream_is_told_before_the_process_is_dead_and_its_slot_is_taken_until_then() -> None:
    async with hanging_engine() as scene, asyncio.timeout(10):
        stream = scene.open(chat())
        assert b"Once" in await stream.__anext__()  # type: ignore[operator]
        pull = asyncio.ensure_future(stream.__anext__())
        await asyncio.sleep(0)
        scene.life.kill()
        with pytest.raises(BackendCrashed, match="hung"):
            await pull
        assert scene.process.num_kills == 1
        assert scene.num_freed == 0
        await scene.dies()
        assert scene.num_freed == 1


async def test_one_that_has_not_been_pulled_yet_sends_nothing() -> None:
    async with hanging_engine() as scene, asyncio.timeout(10):
        stream = scene.open(chat())
        scene.life.kill()
        with pytest.raises(BackendCrashed, match="hung"):
            await stream.__anext__()
        assert scene.num_freed == 1
        assert scene.life.upstream.num_connects == 0


async def test_one_whose_client_left_before_keeps_its_slot_until_the_process_is_dead() -> None:
    async with hanging_engine() as scene, asyncio.timeout(10):
        stream = scene.open(chat())
        await stream.__anext__()
        stream.cancel()
        scene.life.kill()
        assert scene.num_freed == 0
        await scene.dies()
        assert scene.num_freed == 1


async def test_a_request_of_several_calls_is_told_too() -> None:
    async with hanging_engine() as scene, asyncio.timeout(10):
        body = make_request("m", kind=EndpointKind.EMBEDDINGS, input="text")
        stream = scene.open(body)
        pull = asyncio.ensure_future(stream.__anext__())
        await asyncio.sleep(0)
        scene.life.kill()
        with pytest.raises(BackendCrashed, match="hung"):
            await pull
        assert scene.num_freed == 0
        await scene.dies()
        assert scene.num_freed == 1
