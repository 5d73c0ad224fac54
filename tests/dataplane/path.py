"""One stream's way through the real parts, without a socket: what the engine's connection and the client's
would do is done by the test, so every order of events can be had."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llm_runtime.admission.controller import AdmissionController
from llm_runtime.core.clock import Clock, SystemClock
from llm_runtime.core.errors import BackendError, LLMRuntimeError
from llm_runtime.core.request import EndpointKind, RuntimeRequest, TimeLimits
from llm_runtime.engines.base import SignsOfLife, Work
from llm_runtime.engines.http_stream import EngineCall, HttpStream
from llm_runtime.engines.stream_run import StreamRun
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.routing.policies.least_load import LeastLoad
from llm_runtime.routing.router import Router
from llm_runtime.runtime.config import LimitsConfig
from llm_runtime.runtime.dispatcher import Dispatcher
from llm_runtime.runtime.pools import Pool
from llm_runtime.runtime.replica import Replica
from llm_runtime.runtime.request_handle import RequestHandle
from llm_runtime.runtime.runtime import Runtime
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from llm_runtime.web.cycle import Cycle
from llm_runtime.web.flow import Flow
from llm_runtime.web.heads import lines_of
from llm_runtime.web.stream import STREAM_HEADERS, StreamWriter
from llm_runtime.wire.dialects import dialect_for
from llm_runtime.wire.options import RelayOptions
from tests.support.recorder import Recorder
from tests.support.scripted import MODEL, ScriptedBackend

LIMITS = LimitsConfig()


def options_of(request: RuntimeRequest) -> RelayOptions:
    return RelayOptions(kind=request.kind, id="ours", created=1000, model="m")


class Engine(ScriptedBackend):
    """A backend of `HttpStream`s whose exchanges the test moves. It is their owner and upstream."""

    def __init__(self) -> None:
        super().__init__(slots=1)
        self.clock: Clock = SystemClock()
        self.exchanges: list[Exchange] = []
        self.num_releases = 0
        self.signs = SignsOfLife()

    def open(self, batch: Sequence[Work]) -> Any:
        return StreamRun({work.request.id: self._stream(work) for work in batch})

    def _stream(self, work: Work) -> HttpStream:
        call = EngineCall("/v1/chat/completions", b"{}", options_of(work.request))
        return HttpStream(self, call, work.lease, self)

    # ---- as the upstream

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        same_process: Callable[[], bool] | None = None,
    ) -> Exchange:
        exchange = Exchange(b"", same_process)
        self.exchanges.append(exchange)
        return exchange

    # ---- as the owner

    def now(self) -> float:
        return self.clock.now()

    def first_token(self, stream: HttpStream, now: float, *, whole: bool) -> None: ...

    def same_process(self) -> bool:
        return True

    def lost(self, error: LLMRuntimeError, stream: HttpStream) -> LLMRuntimeError:
        return error

    def release(self, stream: HttpStream) -> None:
        self.num_releases += 1
        if stream.exchange is not None and not stream.exchange.ended:
            stream.exchange.abort()
        stream.lease.free()


class Wire:
    """A client's connection below a cycle: keeps what is written, and is full when the test says so."""

    def __init__(self) -> None:
        transport: Any = self
        self.flow = Flow(transport)
        self.default_headers: list[tuple[bytes, bytes]] = []
        self.raw = b""
        self.gone = False
        self.num_answered = 0
        self.closed = False
        self._room = asyncio.Event()

    @property
    def write_paused(self) -> bool:
        return self.flow.paused

    @write_paused.setter
    def write_paused(self, paused: bool) -> None:
        self.flow.paused = paused

    # ---- `cycle.Wire`

    async def drained(self) -> None:
        while self.write_paused:
            self._room.clear()
            await self._room.wait()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def answered(self) -> None:
        self.num_answered += 1

    def left(self, cycle: Cycle) -> None: ...

    # ---- the transport

    def write(self, data: bytes) -> None:
        assert not self.gone, "written to a client that is known to be gone"
        self.raw += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return self.gone

    # ---- the test's

    def read_on(self) -> None:
        self.write_paused = False
        self._room.set()

    @property
    def body(self) -> bytes:
        """What the client has of the body, out of its chunks; asserts that they are well formed."""
        _, _, rest = self.raw.partition(b"\r\n\r\n")
        parts = []
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            parts.append(rest[: int(size, 16)])
            assert rest[int(size, 16) :][:2] == b"\r\n"
            rest = rest[int(size, 16) + 2 :]
        return b"".join(parts)

    @property
    def complete(self) -> bool:
        return self.raw.endswith(b"\r\n0\r\n\r\n")


class Path:
    """A runtime with one engine, and one stream through it, played as the endpoint plays it. is_next: nothing
    stands between it and the connection that changes heads, so the head is made by the first event."""

    def __init__(self, *, is_next: bool = True) -> None:
        self.is_next = is_next
        self.engine = Engine()
        self.recorder = Recorder()
        self.wire = Wire()
        clock = self.engine.clock
        self.dispatcher = Dispatcher(
            [Replica("engine-0", self.engine)],
            build_scheduler(SchedulingConfig(max_batch_size=8)),
            Router(LeastLoad(), random.Random(1)),
            events=self.recorder,
            clock=clock,
            cancel_timeout_s=10.0,
        )
        self.runtime = Runtime(
            [Pool(MODEL, frozenset({EndpointKind.CHAT}), self.dispatcher)],
            AdmissionController((), ()),
            events=self.recorder,
            clock=clock,
            limits=LIMITS,
        )
        self.request = RuntimeRequest(
            id="one",
            model=MODEL,
            kind=EndpointKind.CHAT,
            body={"messages": []},
            arrived_at=clock.now(),
            created=1,
            max_tokens=16,
            stream=True,
            limits=TimeLimits(request_s=None, idle_s=None),
        )
        self.cycle = Cycle(self.wire, self.wire.flow, {})
        self.handle: RequestHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.num_turns_of_task = 0

    @property
    def exchange(self) -> Exchange:
        return self.engine.exchanges[-1]

    async def start(self) -> None:
        await self.runtime.start()
        await turns()
        self.task = asyncio.get_running_loop().create_task(self._serve())
        await turns()

    async def _serve(self) -> None:
        permit = await self.runtime.admit(self.request)
        self.handle = handle = self.runtime.submit(self.request, permit)
        dialect = dialect_for(EndpointKind.CHAT)
        lines = (lambda: lines_of(STREAM_HEADERS)) if self.is_next else None
        writer = StreamWriter(
            self.cycle.send, dialect, lambda: [*STREAM_HEADERS], cycle=self.cycle, lines=lines
        )
        try:
            self.cycle.watch(handle.client_gone)
            with handle:
                await writer.run(handle)
        except LLMRuntimeError:
            pass

    def head(self, status: int = 200) -> None:
        """The engine's answer begins."""
        self.exchange.started()
        self.exchange.status = status
        self.exchange.headers = {b"content-type": b"text/event-stream"}
        self.exchange.arrived()

    def arrive(self, data: bytes, *, ends: bool = False) -> None:
        """One read of the engine's connection."""
        exchange = self.exchange
        if exchange.ended:
            return  # the connection was closed from here: nobody hears what the engine says
        if data and not ends and exchange.take(data, b"%x\r\n%b\r\n" % (len(data), data)):
            return  # as a connection does with one whole chunk
        if data:
            exchange.parts.append(data)
            exchange.num_buffered += len(data)
        if ends:
            exchange.finish()
        else:
            exchange.arrived()

    def die(self) -> None:
        self.exchange.fail(BackendError("The connection was lost."), lost=True)

    def leave(self) -> None:
        self.wire.gone = True
        self.wire.read_on()
        self.cycle.lost()

    async def aclose(self) -> None:
        self.wire.read_on()
        await self.runtime.aclose()
        if self.task is not None:
            await self.task


async def turns(number: int = 12) -> None:
    """Lets everything run that can run."""
    for _ in range(number):
        await asyncio.sleep(0)
