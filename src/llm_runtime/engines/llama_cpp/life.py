"""One life of a llama.cpp engine: a process, the connections to it, the slots it holds."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import orjson

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendCrashed, BackendError, LLMRuntimeError
from llm_runtime.engines.base import Work
from llm_runtime.engines.http_stream import HttpStream
from llm_runtime.engines.llama_cpp.calls import engine_call
from llm_runtime.engines.llama_cpp.fields import TemplateAbilities
from llm_runtime.engines.llama_cpp.slots import TAGS, SlotWatch
from llm_runtime.engines.process import EngineProcess, ExitReport
from llm_runtime.engines.upstream.client import Upstream

PROBE_INTERVAL_S = 0.05


class EngineLife:
    """`supervisor.Engine`, and the owner of the streams that run on this very process. Owned by the
    backend; a crash ends it, and a new process is a new life."""

    def __init__(self, process: EngineProcess, upstream: Upstream, clock: Clock) -> None:
        self._process = process
        self._upstream = upstream
        self._clock = clock
        self._slots = SlotWatch(upstream)
        self._tags: dict[HttpStream, int] = {}
        self._next_tag = itertools.cycle(TAGS)
        self.abilities = TemplateAbilities()
        self.progressed_at: float | None = None

    # ---- starting and ending, by the supervisor

    async def become_ready(self, timeout_s: float) -> None:
        """Raises what `EngineProcess.wait_ready` raises; the process is not stopped."""
        props = await self._process.wait_ready(self._probe, timeout_s)
        self.abilities = TemplateAbilities.of_props(props)

    async def _probe(self) -> Mapping[str, Any]:
        # Only starting up is polled: an external server has no event that says it is ready.
        while not await self._healthy():  # noqa: ASYNC110
            await asyncio.sleep(PROBE_INTERVAL_S)
        exchange = self._upstream.request("GET", "/props")
        await exchange.head()
        props: Any = orjson.loads(await exchange.read_all())
        return props if isinstance(props, dict) else {}

    async def _healthy(self) -> bool:
        exchange = self._upstream.request("GET", "/health")
        try:
            await exchange.head()
            await exchange.read_all()
        except BackendError:
            return False
        return exchange.status == 200

    async def wait(self) -> ExitReport:
        """Until the engine has ended; then nothing of it holds a slot any more."""
        watching = asyncio.get_running_loop().create_task(self._slots.run(), name="llama.cpp slots")
        try:
            return await self._process.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._gone()
            await self._upstream.aclose()

    async def stop(self, grace_s: float | None = None) -> ExitReport:
        report = await self._process.stop(grace_s)
        self._gone()
        await self._upstream.aclose()
        return report

    def _gone(self) -> None:
        """No process, no slots; also of those whose task is busy elsewhere and has not noticed."""
        self._slots.engine_gone()
        for stream in tuple(self._tags):
            stream.lease.free()

    def kill(self) -> None:
        self._process.kill()

    # ---- streams

    def open(self, work: Work) -> HttpStream:
        tag = next(self._next_tag)
        stream = HttpStream(self._upstream, engine_call(work.request, tag), work.lease, self)
        self._tags[stream] = tag
        return stream

    def now(self) -> float:
        return self._clock.now()

    def same_process(self) -> bool:
        return self._process.alive

    def progressed(self) -> None:
        self.progressed_at = self._clock.now()

    def lost(self, error: LLMRuntimeError, stream: HttpStream) -> LLMRuntimeError:
        if self._process.alive:
            return error
        return BackendCrashed("The engine crashed while it was working on the request.")

    def release(self, stream: HttpStream) -> None:
        tag = self._tags.pop(stream)
        exchange = stream.exchange
        if exchange is None or stream.answered or (exchange.ended and not exchange.lost):
            stream.lease.free()
        elif not self._process.alive:
            exchange.abort()
            stream.lease.free()
        else:
            self._slots.cancel(tag, exchange, stream.lease)
