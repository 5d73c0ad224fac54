"""`Backend` for vLLM's engine inside this process: no HTTP between, its core in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import resource_tracker
from typing import Any

import structlog

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendCrashed, BackendError, BackendUnavailable, LLMRuntimeError
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.engines.base import BackendInfo, Batching, Work
from llm_runtime.engines.child_backend import ChildBackend, EngineHost, hung
from llm_runtime.engines.config import VllmConfig
from llm_runtime.engines.orphan_watch import OrphanWatch
from llm_runtime.engines.process import ExitReport
from llm_runtime.engines.vllm.command import ServedModel, engine_arguments
from llm_runtime.engines.vllm.core import EngineCore, build, installed_version
from llm_runtime.engines.vllm.fields import GENERATIONS, check
from llm_runtime.engines.vllm.server import local_defaults
from llm_runtime.engines.vllm.stream import InProcessStream
from llm_runtime.engines.watchdog import WorkLedger, watch

log = structlog.get_logger(__name__)

NAME = "vllm-inprocess"
KILL_INTERVAL_S = 0.2


class InProcessLife:
    """`child_backend.EngineLife`: one engine core process and the requests in it."""

    def __init__(self, core: EngineCore, orphans: OrphanWatch, clock: Clock, *, with_priority: bool) -> None:
        self.core = core
        self.ledger = WorkLedger()
        self._orphans: OrphanWatch | None = orphans
        self._clock = clock
        self._with_priority = with_priority
        self._streams: set[InProcessStream] = set()
        self._watched: tuple[float, Callable[[str], None]] | None = None

    @property
    def progressed_at(self) -> float | None:
        return self.ledger.signs.seen_at

    @property
    def last_lines(self) -> tuple[str, ...]:
        return ()  # its output is ours

    def watch(self, stall_timeout_s: float, stuck: Callable[[str], None]) -> None:
        """As `HttpLife.watch`."""
        self._watched = (stall_timeout_s, stuck)

    async def work_done(self) -> float | None:
        """As `watchdog.Watched`. An engine that is within a step for too long does not answer."""
        await self.core.answers()
        return float(self.core.num_outputs)

    # ---- ending, by the supervisor

    async def wait(self) -> ExitReport:
        watching: asyncio.Task[None] | None = None
        if self._watched is not None:
            watching = asyncio.get_running_loop().create_task(
                watch(self, *self._watched, now=self.now), name=f"{NAME} watchdog"
            )
        try:
            await self.core.ended()
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        await self._close(BackendCrashed("The engine crashed while it was working on the request."), 0.0)
        return ExitReport(NAME, self.core.exit_code, ())

    async def stop(self, grace_s: float | None = None) -> ExitReport:
        await self._close(BackendError("The engine was stopped."), grace_s or 0.0)
        return ExitReport(NAME, 0, ())

    def kill(self) -> None:
        self.core.kill()
        for stream in tuple(self._streams):
            stream.fail(hung())

    async def _close(self, why: LLMRuntimeError, grace_s: float) -> None:
        streams = tuple(self._streams)
        for stream in streams:
            stream.fail(type(why)(why.message))
        await asyncio.to_thread(self._shut_down, grace_s)
        tasks = [stream.task for stream in streams if stream.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _shut_down(self, grace_s: float) -> None:
        orphans, self._orphans = self._orphans, None
        try:
            self.core.shutdown(grace_s)
        finally:
            if orphans is not None:
                orphans.close()  # whatever is left of the engine goes now

    # ---- streams

    def open(self, work: Work) -> InProcessStream:
        stream = InProcessStream(work.request, work.lease, self, with_priority=self._with_priority)
        self._streams.add(stream)
        self.ledger.opened(work.lease, work.request.num_prompt_tokens, self.now())
        return stream

    def now(self) -> float:
        return self._clock.now()

    def progressed(self) -> None:
        self.ledger.signs.at = self._clock.now()

    def first_token(self, stream: InProcessStream, *, whole: bool) -> float:
        now = self._clock.now()
        self.ledger.first_token(stream.lease, now, whole=whole)
        return now

    def ended(self, stream: InProcessStream) -> None:
        self._streams.discard(stream)


class VllmInProcessBackend(ChildBackend[InProcessLife]):
    """One engine of vLLM's; see `ChildBackend` for who may call what."""

    def __init__(
        self,
        config: VllmConfig,
        host: EngineHost,
        *,
        num_slots: int,
        model: ServedModel,
        model_created: int,
    ) -> None:
        """Raises ConfigError where vLLM is not installed here, or is a version nobody tried."""
        self._config = config
        self._host = host
        self._model = model
        self._arguments = ("--model", model.weights, *engine_arguments(config, model, num_slots))
        self.version = installed_version()
        info = BackendInfo(
            name=NAME,
            model=model.name,
            batching=Batching.CONTINUOUS,
            num_slots=num_slots,
            context_tokens=config.max_model_len,
            endpoints=GENERATIONS,
            model_created=model_created,
            content_parts=None,  # vLLM knows what its model takes, and says so
        )
        super().__init__(info, host.supervision, self._start_life)

    def check(self, request: RuntimeRequest) -> None:
        check(request)

    async def _start_life(self) -> InProcessLife:
        """Builds an engine and returns it ready. Leaves nothing behind when it raises."""
        log.info("engine.starting", engine=NAME, version=self.version)
        core, parsed, orphans = await self._built()
        priority = self._config.scheduling_policy == "priority"
        life = InProcessLife(core, orphans, self._host.clock, with_priority=priority)
        try:
            await core.open(parsed)
        except BaseException:
            await life.stop(0.0)
            raise
        self.info = replace(self.info, context_tokens=core.context_tokens)
        return life

    async def _built(self) -> tuple[EngineCore, Any, OrphanWatch]:
        others = {child.pid for child in multiprocessing.active_children()}
        building = asyncio.ensure_future(asyncio.to_thread(self._build))
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                return await asyncio.shield(building)
        except TimeoutError:
            await _given_up(building, others)
            limit = f"{self._config.start_timeout_s:g} s"
            raise BackendUnavailable(
                f"the {NAME} engine was not ready within {limit}", reason="engine_start_timeout"
            ) from None
        except asyncio.CancelledError:
            await _given_up(building, others)
            raise

    def _build(self) -> tuple[EngineCore, Any, OrphanWatch]:
        resource_tracker.ensure_running()  # it outlives engines, so it must not bear their mark
        orphans = OrphanWatch(self._host.state_dir, NAME)
        for name, value in self._defaults().items():
            os.environ.setdefault(name, value)
        os.environ.update(orphans.environment)
        try:
            core, parsed = build(self._arguments)
        except BaseException:
            orphans.close()
            raise
        finally:
            for name in orphans.environment:
                del os.environ[name]
        for pid in core.pids:
            orphans.add(pid)
        return core, parsed, orphans

    def _defaults(self) -> dict[str, str]:
        """What vLLM reads from this process's environment, and hands to the processes it starts: not
        forked, because this one has threads; its lines go where ours go."""
        return {
            **local_defaults(self._model),
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "VLLM_CONFIGURE_LOGGING": "0",
        }


async def _given_up(
    building: asyncio.Future[tuple[EngineCore, Any, OrphanWatch]], others: set[int | None]
) -> None:
    """A thread can't be cancelled: its engine process is ended until it gives up, or the engine is.
    others: processes that were there before."""
    while not building.done():
        for child in multiprocessing.active_children():
            if child.name.startswith("EngineCore") and child.pid not in others:
                child.kill()
        await asyncio.wait((building,), timeout=KILL_INTERVAL_S)
    multiprocessing.active_children()  # reaps those that have ended
    with contextlib.suppress(Exception):
        core, _, orphans = building.result()
        await asyncio.to_thread(core.shutdown, 0.0)
        await asyncio.to_thread(orphans.close)
