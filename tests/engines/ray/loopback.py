"""A `Link` without Ray: replicas are services in this process, and can be lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from llm_runtime.core.clock import SystemClock
from llm_runtime.engines.config import MockConfig
from llm_runtime.engines.mock import MockBackend
from llm_runtime.engines.ray.base import Member, Membership, ReplicaGone
from llm_runtime.engines.ray.service import EngineService

CLOCK = SystemClock()
MODEL = "mock-model"


async def mock_service(num_slots: int = 8, prefill_ms: float = 2.0, decode_ms: float = 0.5) -> EngineService:
    """Started."""
    config = MockConfig(prefill_latency_ms=prefill_ms, decode_latency_ms=decode_ms)
    backends = [
        MockBackend(config, model=MODEL, num_slots=1, model_created=1, clock=CLOCK) for _ in range(num_slots)
    ]
    service = EngineService(backends, num_slots, CLOCK)
    await service.start()
    return service


class LoopbackAnswer:
    """As Ray does it: a task runs the replica's generator, cancelling cancels that task, and the frames
    end when the generator has."""

    def __init__(self, link: Loopback, member: str, request: bytes) -> None:
        self._link = link
        self._member = member
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.task = asyncio.get_running_loop().create_task(self._run(request))

    async def _run(self, request: bytes) -> None:
        service = self._link.services.get(self._member)
        try:
            if service is not None:
                async with contextlib.aclosing(service.answer(request)) as frames:
                    async for frame in frames:
                        self._frames.put_nowait(frame)
        finally:
            self._frames.put_nowait(None)

    async def __anext__(self) -> bytes:
        frame = await self._frames.get()
        if frame is not None:
            return frame
        if self._member not in self._link.services:
            raise ReplicaGone(self._member, dead=self._member in self._link.dead)
        raise StopAsyncIteration

    def cancel(self) -> None:
        self.task.cancel()


class Loopback:
    """Implements `Link`."""

    def __init__(self, services: Mapping[str, EngineService]) -> None:
        self.services = dict(services)
        self.answers: list[LoopbackAnswer] = []
        self.dead: set[str] = set()
        self.lost: dict[str, EngineService] = {}

    def call(self, member: str, request: bytes) -> LoopbackAnswer:
        answer = LoopbackAnswer(self, member, request)
        self.answers.append(answer)
        return answer

    def lose(self, member: str, *, dead: bool = True) -> None:
        """As when its process is killed, or cannot be reached: those who are reading hear of it."""
        self.lost[member] = self.services.pop(member)
        if dead:
            self.dead.add(member)
        for answer in self.answers:
            if answer._member == member:
                answer.task.cancel()

    def membership(self) -> Membership:
        return Membership([Member(name, "n0", service.facts()) for name, service in self.services.items()])

    async def aclose(self) -> None:
        for answer in self.answers:
            answer.task.cancel()
        await asyncio.gather(*(answer.task for answer in self.answers), return_exceptions=True)
        for service in (*self.services.values(), *self.lost.values()):
            await service.aclose()


@contextlib.asynccontextmanager
async def loopback(*members: str, **options: float) -> AsyncIterator[Loopback]:
    link = Loopback({name: await mock_service(**options) for name in members})  # type: ignore[arg-type]
    try:
        yield link
    finally:
        await link.aclose()
