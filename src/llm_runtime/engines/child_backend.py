"""What every `Backend` whose engine is a process of its own shares: lives one after another, each
started and judged by the supervisor, and what `Backend` promises on top of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import structlog

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendCrashed, BackendUnavailable
from llm_runtime.engines.base import BackendInfo, BackendState, BackendStatus, Work
from llm_runtime.engines.config import SupervisionConfig
from llm_runtime.engines.stream_run import OpenStream, StreamRun
from llm_runtime.engines.supervisor import Engine, Supervisor

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EngineHost:
    """What running an engine needs of this machine and process.

    environ: what engine programs inherit. state_dir: existing folder for the guards' notes.
    """

    supervision: SupervisionConfig
    clock: Clock
    environ: Mapping[str, str]
    state_dir: Path


class EngineLife(Engine, Protocol):
    """One life of an engine: from its start to its end. A crash ends it, a restart is a new one.

    `kill` also fails its requests, with `hung`: they are not kept waiting for the end of a process that
    may take long to die.
    """

    @property
    def progressed_at(self) -> float | None:
        """As `Backend.signs_of_life`."""
        ...

    @property
    def last_lines(self) -> tuple[str, ...]:
        """What it printed last, where that is known."""
        ...

    def open(self, work: Work) -> OpenStream: ...

    def watch(self, stall_timeout_s: float, stuck: Callable[[str], None]) -> None:
        """Has its progress watched: `stuck` is called with the reason when it makes none."""
        ...


L = TypeVar("L", bound=EngineLife)


def hung() -> BackendCrashed:
    """What requests end with whose engine was given up."""
    return BackendCrashed("The engine hung while it was working on the request.")


class ChildBackend(Generic[L]):
    """Owned by the runtime; everything but `start` and `aclose` is called from the loop.

    launch: starts a life and returns it ready. Raises ConfigError where trying again cannot help,
    another LLMRuntimeError otherwise; leaves nothing behind when it raises or is cancelled. It may
    replace `info` by what the engine said of itself.
    """

    def __init__(
        self, info: BackendInfo, supervision: SupervisionConfig, launch: Callable[[], Awaitable[L]]
    ) -> None:
        self.info = info
        self._launch = launch
        self._stall_timeout_s = supervision.stall_timeout_s
        self._life: L | None = None
        self._on_change: Callable[[], None] | None = None
        self._supervisor = Supervisor(self._begin, supervision, self._changed)
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> BackendStatus:
        if self._task is not None and self._task.done() and not self._task.cancelled():
            return BackendStatus(BackendState.FAILED, "the engine's supervisor failed")
        return self._supervisor.status

    @property
    def num_restarts(self) -> int:
        return self._supervisor.num_restarts

    async def start(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        name = f"{self.info.name} supervisor"
        self._task = asyncio.get_running_loop().create_task(self._supervisor.run(), name=name)
        self._task.add_done_callback(self._supervisor_ended)
        await self._supervisor.wait_ready()

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def open(self, batch: Sequence[Work]) -> StreamRun:
        life = self._life
        if life is None:
            raise BackendUnavailable("The engine is not running.")
        return StreamRun({work.request.id: life.open(work) for work in batch})

    def signs_of_life(self) -> float | None:
        return self._life.progressed_at if self._life is not None else None

    async def _begin(self) -> L:
        self._life = life = await self._launch()
        if self._stall_timeout_s is not None:
            life.watch(self._stall_timeout_s, self._stuck)
        return life

    def _stuck(self, reason: str) -> None:
        lines = self._life.last_lines if self._life is not None else ()
        log.error("engine.stuck", engine=self.info.name, reason=reason, detail="\n".join(lines))
        self._supervisor.restart(f"the {self.info.name} engine was stuck: {reason}")

    def _changed(self, status: BackendStatus) -> None:
        if status.state in (BackendState.CRASHED, BackendState.FAILED):
            error = self._supervisor.last_error
            notes = getattr(error, "__notes__", []) if error is not None else []
            log.error(
                "engine.ended", engine=self.info.name, state=status.state.value, detail="\n".join(notes)
            )
        if status.state not in (BackendState.READY, BackendState.DRAINING):
            self._life = None
        if self._on_change is not None:
            self._on_change()

    def _supervisor_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("engine.supervisor_failed", engine=self.info.name, exc_info=task.exception())
            if self._on_change is not None:
                self._on_change()


def log_engine_line(engine: str) -> Callable[[str, str], None]:
    """For what an engine prints."""

    def line(stream: str, text: str) -> None:
        log.debug("engine.output", engine=engine, stream=stream, line=text)

    return line
