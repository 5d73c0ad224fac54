"""One life of an engine that is a process of ours and speaks HTTP: the process, the connections to it,
the requests inside it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendCrashed, BackendError, LLMRuntimeError
from llm_runtime.core.lease import Lease
from llm_runtime.engines.base import Work
from llm_runtime.engines.child_backend import hung
from llm_runtime.engines.http_stream import EngineCall, HttpStream
from llm_runtime.engines.process import EngineProcess, ExitReport
from llm_runtime.engines.stream_run import OpenStream
from llm_runtime.engines.upstream.client import Upstream
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.engines.watchdog import WorkLedger, watch

H = TypeVar("H", bound=Hashable)
H_contra = TypeVar("H_contra", bound=Hashable, contravariant=True)


class Cancellations(Protocol[H_contra]):
    """How this engine is rid of requests that nobody wants any more, and how that is seen.

    A handle is what identifies a request inside the engine.
    """

    def cancel(self, handle: H_contra, exchange: Exchange, lease: Lease) -> None:
        """Takes over a request that is not over: makes the engine drop it, and frees the lease when it
        has. Nobody else may read the exchange from now on or use its callbacks."""
        ...

    async def run(self) -> None:
        """Until cancelled."""
        ...

    def engine_gone(self) -> None:
        """The process has ended: it holds nothing any more."""
        ...


class Failing(Protocol):
    def fail(self, error: LLMRuntimeError) -> None:
        """Whoever pulls the stream gets the error, after what had arrived."""
        ...


class HttpLife(ABC, Generic[H]):
    """`child_backend.EngineLife`, and the owner of the streams that run on this very process. Owned by
    the backend; a crash ends it, and a new process is a new life. Subclasses say how the engine is
    asked: `prepare`, `work_done`.
    """

    def __init__(
        self, process: EngineProcess, upstream: Upstream, clock: Clock, cancellations: Cancellations[H]
    ) -> None:
        self.process = process
        self.upstream = upstream
        self.ledger = WorkLedger()
        self.signs = self.ledger.signs
        self._clock = clock
        self._cancellations = cancellations
        self._handles: dict[HttpStream, H] = {}
        self._watched: tuple[float, Callable[[str], None]] | None = None
        self._given_up = False

    @property
    def progressed_at(self) -> float | None:
        return self.ledger.signs.seen_at

    @property
    def last_lines(self) -> tuple[str, ...]:
        return self.process.output.last()

    def watch(self, stall_timeout_s: float, stuck: Callable[[str], None]) -> None:
        """Has its progress watched from now on: see `watchdog`. Before `wait` only."""
        self._watched = (stall_timeout_s, stuck)

    @abstractmethod
    async def work_done(self) -> float | None:
        """As `watchdog.Watched`."""

    @abstractmethod
    def prepare(self, work: Work) -> tuple[EngineCall, H]:
        """What is sent for a request, and its handle for `Cancellations`."""

    # ---- ending, by the supervisor

    async def wait(self) -> ExitReport:
        """Until the engine has ended; then nothing of it holds a slot any more."""
        loop, name = asyncio.get_running_loop(), self.process.spec.name
        tasks = [loop.create_task(self._cancellations.run(), name=f"{name} cancellations")]
        if self._watched is not None:
            tasks.append(loop.create_task(watch(self, *self._watched, now=self.now), name=f"{name} watchdog"))
        try:
            return await self.process.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.gone()
            await self.upstream.aclose()

    async def stop(self, grace_s: float | None = None) -> ExitReport:
        report = await self.process.stop(grace_s)
        self.gone()
        await self.upstream.aclose()
        return report

    def kill(self) -> None:
        """As one that hangs. Its requests are told at once, their leases are freed when it has ended."""
        self._given_up = True
        self.process.kill()
        for stream in self.open_streams():
            stream.fail(hung())

    def open_streams(self) -> tuple[Failing, ...]:
        """Those the process works on."""
        return tuple(self._handles)

    def gone(self) -> None:
        """No process, no slots; also of those whose task is busy elsewhere and has not noticed."""
        self._cancellations.engine_gone()
        for stream in tuple(self._handles):
            stream.lease.free()

    async def get(self, path: str) -> bytes | None:
        """The body of an answer 200; None for any other answer and for none at all."""
        exchange = self.upstream.request("GET", path)
        try:
            await exchange.head()
            body = await exchange.read_all()
        except BackendError:
            return None
        finally:
            exchange.abort()
        return body if exchange.status == 200 else None

    # ---- streams

    def open(self, work: Work) -> OpenStream:
        call, handle = self.prepare(work)
        stream = HttpStream(self.upstream, call, work.lease, self)
        self._handles[stream] = handle
        self.ledger.opened(work.lease, work.request.num_prompt_tokens, self.now())
        return stream

    def now(self) -> float:
        return self._clock.now()

    def first_token(self, stream: HttpStream, now: float, *, whole: bool) -> None:
        self.ledger.first_token(stream.lease, now, whole=whole)

    def same_process(self) -> bool:
        return not self._given_up and self.process.alive

    def lost(self, error: LLMRuntimeError, stream: HttpStream) -> LLMRuntimeError:
        if self._given_up:
            return hung()
        if self.process.alive:
            return error
        return BackendCrashed("The engine crashed while it was working on the request.")

    def release(self, stream: HttpStream) -> None:
        handle = self._handles.pop(stream)
        exchange = stream.exchange
        if exchange is None or stream.answered or (exchange.ended and not exchange.lost):
            stream.lease.free()
        elif not self.process.alive:
            exchange.abort()
            stream.lease.free()
        else:
            self._cancellations.cancel(handle, exchange, stream.lease)
