"""`Backend` for llama.cpp: a supervised child that hosts its HTTP server on a Unix socket."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendUnavailable
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import BackendInfo, BackendState, BackendStatus, Batching, Work
from llm_runtime.engines.config import LlamaCppConfig, SupervisionConfig
from llm_runtime.engines.http_stream import HttpRun
from llm_runtime.engines.llama_cpp.command import LaunchParameters
from llm_runtime.engines.llama_cpp.fields import TemplateAbilities, check
from llm_runtime.engines.llama_cpp.life import EngineLife
from llm_runtime.engines.process import EngineProcess, ProcessSpec, child_environment, scratch_directory
from llm_runtime.engines.supervisor import Supervisor
from llm_runtime.engines.upstream.address import Address
from llm_runtime.engines.upstream.client import Upstream

log = structlog.get_logger(__name__)

NAME = "llama.cpp"
ENDPOINTS = frozenset({EndpointKind.CHAT, EndpointKind.COMPLETIONS})
MIN_BATCH = 16
"""Tokens of prompt worked on between two looks at cancellations: larger is a little faster, and
cancels later (docs/configuration.md has the measurement)."""


class LlamaCppBackend:
    """One engine. Owned by the runtime; everything but `start` and `aclose` is called from the loop."""

    def __init__(
        self,
        config: LlamaCppConfig,
        supervision: SupervisionConfig,
        *,
        model: str,
        model_path: Path,
        model_created: int,
        clock: Clock,
        environ: Mapping[str, str],
        state_dir: Path,
    ) -> None:
        self._config = config
        self._supervision = supervision
        self._model_path = model_path
        self._clock = clock
        self._environ = environ
        self._state_dir = state_dir
        self._life: EngineLife | None = None
        self._abilities = TemplateAbilities()
        self._on_change: Callable[[], None] | None = None
        self._supervisor = Supervisor(self._launch, supervision, self._changed)
        self._task: asyncio.Task[None] | None = None
        self.info = BackendInfo(
            name=NAME,
            model=model,
            batching=Batching.CONTINUOUS,
            num_slots=config.native_backend_concurrency,
            context_tokens=config.n_ctx,
            endpoints=ENDPOINTS,
            model_created=model_created,
        )

    @property
    def status(self) -> BackendStatus:
        if self._task is not None and self._task.done() and not self._task.cancelled():
            return BackendStatus(BackendState.FAILED, "the engine's supervisor failed")
        return self._supervisor.status

    @property
    def num_restarts(self) -> int:
        return self._supervisor.num_restarts

    def check(self, request: RuntimeRequest) -> None:
        check(request, self._abilities)

    async def start(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._supervisor.run(), name=f"{NAME} supervisor")
        self._task.add_done_callback(self._supervisor_ended)
        await self._supervisor.wait_ready()

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def open(self, batch: Sequence[Work]) -> HttpRun:
        life = self._life
        if life is None:
            raise BackendUnavailable("The engine is not running.")
        return HttpRun({work.request.id: life.open(work) for work in batch})

    def signs_of_life(self) -> float | None:
        return self._life.progressed_at if self._life is not None else None

    # ---- the engine's lives

    async def _launch(self) -> EngineLife:
        """Starts a process and returns it ready. Leaves nothing behind when it raises."""
        scratch = scratch_directory()
        socket_path = scratch / "engine.sock"
        key = secrets.token_hex(16)
        process = await EngineProcess.start(
            ProcessSpec(
                name=NAME,
                command=self._parameters(socket_path).command(),
                environment=child_environment(
                    self._environ, {"LLAMA_API_KEY": key, "GGML_NO_BACKTRACE": "1"}
                ),
                state_dir=self._state_dir,
                grace_s=self._supervision.stop_grace_s,
                scratch=scratch,
            ),
            on_line=_log_line,
        )
        upstream = Upstream(Address(unix_path=str(socket_path)), {"authorization": f"Bearer {key}"})
        life = EngineLife(process, upstream, self._clock)
        try:
            await life.become_ready(self._supervision.start_timeout_s)
        except BaseException:
            await life.stop(0.0)
            raise
        self._life = life
        self._abilities = life.abilities
        return life

    def _parameters(self, socket_path: Path) -> LaunchParameters:
        config = self._config
        return LaunchParameters(
            model_path=self._model_path,
            alias=self.info.model,
            socket_path=socket_path,
            num_slots=config.native_backend_concurrency,
            context_tokens=config.n_ctx,
            num_threads=config.n_threads or default_threads(),
            num_batch=config.n_batch or max(config.native_backend_concurrency, MIN_BATCH),
            num_gpu_layers=config.n_gpu_layers,
            cache_ram_mib=config.cache_ram_mib,
            server_binary=config.server_binary,
        )

    def _changed(self, status: BackendStatus) -> None:
        if status.state in (BackendState.CRASHED, BackendState.FAILED):
            error = self._supervisor.last_error
            notes = getattr(error, "__notes__", []) if error is not None else []
            log.error("engine.ended", engine=NAME, state=status.state.value, detail="\n".join(notes))
        if status.state is not BackendState.READY:
            self._life = None if status.state is not BackendState.DRAINING else self._life
        if self._on_change is not None:
            self._on_change()

    def _supervisor_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("engine.supervisor_failed", engine=NAME, exc_info=task.exception())
            if self._on_change is not None:
                self._on_change()


def default_threads() -> int:
    """One core stays free for the gateway: a thread that waits for a busy one costs the engine most
    (docs/benchmarks.md has the comparison)."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable - 1)


def _log_line(stream: str, line: str) -> None:
    log.debug("engine.output", engine=NAME, stream=stream, line=line)
