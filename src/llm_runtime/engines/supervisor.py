"""`Supervisor`: keeps one engine running, as `supervision.py` decides."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from llm_runtime.core.errors import BackendUnavailable, ConfigError, LLMRuntimeError
from llm_runtime.engines.base import BackendState, BackendStatus
from llm_runtime.engines.config import SupervisionConfig
from llm_runtime.engines.process import ExitReport
from llm_runtime.engines.supervision import (
    BecameReady,
    DrainAsked,
    Ended,
    Event,
    StartAsked,
    StopAsked,
    Supervision,
    backoff_s,
    step,
)


class Engine(Protocol):
    """A started and ready engine; `EngineProcess` is one."""

    async def wait(self) -> ExitReport: ...

    async def stop(self, grace_s: float | None = None) -> ExitReport: ...

    def kill(self) -> None: ...


Launch = Callable[[], Awaitable[Engine]]
"""Starts an engine and returns it when it is ready. Raises ConfigError where trying again cannot
help, another LLMRuntimeError otherwise; leaves nothing behind when it raises or is cancelled."""


class Supervisor:
    """`run` is one long-lived task of the backend, which cancels it to stop the engine; everything
    else may be called from anywhere on the loop.

    on_change(status): called at each change of state, from the loop; must not raise.
    """

    def __init__(
        self,
        launch: Launch,
        config: SupervisionConfig,
        on_change: Callable[[BackendStatus], None],
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._launch = launch
        self._config = config
        self._on_change = on_change
        self._clock = clock
        self._chance = chance
        self._current = Supervision()
        self._engine: Engine | None = None
        self._start_asked = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._last_error: LLMRuntimeError | None = None

    @property
    def status(self) -> BackendStatus:
        return BackendStatus(self._current.state, self._current.reason)

    @property
    def num_restarts(self) -> int:
        """Starts after a crash so far."""
        return self._current.num_restarts

    @property
    def last_error(self) -> LLMRuntimeError | None:
        """Why the engine ended or did not start last; its notes have the output, for the log."""
        return self._last_error

    async def run(self) -> None:
        """Until cancelled; then the engine is stopped. Also goes on in FAILED: `start_again` helps."""
        try:
            while True:
                await self._live()
                await self._pause()
        finally:
            engine, self._engine = self._engine, None
            try:
                if engine is not None:
                    await engine.stop(self._config.stop_grace_s)
            finally:
                self._apply(StopAsked())

    async def wait_ready(self) -> None:
        """Until the engine is ready. Raises the error of the next failed start (ConfigError or
        BackendUnavailable); `run` nevertheless tries again where that can help."""
        if self._current.state is BackendState.READY:
            return
        if self._current.state is BackendState.FAILED:
            raise self._failure()
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    def drain(self) -> None:
        """Takes a ready engine out of service; it runs on until `run` is cancelled."""
        self._apply(DrainAsked())

    def restart(self, reason: str) -> None:
        """Ends a running engine by force, for one that hangs: a crash for that reason, which counts from
        now on, not from the end of a process that may take long to die. Nothing for one that has ended."""
        engine = self._engine
        if engine is None or self._current.state not in (BackendState.READY, BackendState.DRAINING):
            return
        self._last_error = BackendUnavailable(reason)
        self._apply(Ended(reason))
        engine.kill()

    def start_again(self) -> None:
        """Tries at once, in a pause or after FAILED; nothing otherwise."""
        if self._current.state in (BackendState.CRASHED, BackendState.FAILED):
            self._start_asked.set()

    async def _live(self) -> None:
        """One life of the engine: from its start to its end."""
        self._start_asked.clear()
        self._apply(StartAsked())
        try:
            self._engine = await self._launch()
        except LLMRuntimeError as exc:
            self._last_error = exc
            self._apply(Ended(exc.message, permanent=isinstance(exc, ConfigError)))
            return
        self._apply(BecameReady())
        report = await self._engine.wait()
        self._engine = None
        if self._current.state in (BackendState.READY, BackendState.DRAINING):
            self._last_error = report.error()
            self._apply(Ended(report.public_reason))

    async def _pause(self) -> None:
        if self._current.state is not BackendState.CRASHED:
            await self._start_asked.wait()
            return
        try:
            async with asyncio.timeout(backoff_s(self._current, self._chance(), self._config)):
                await self._start_asked.wait()
        except TimeoutError:
            return

    def _apply(self, event: Event) -> None:
        before = self._current
        self._current = step(before, event, self._clock(), self._config)
        if self._current.state is before.state:
            return
        for waiter in self._waiters:
            if waiter.done() or self._current.state in (BackendState.STARTING, BackendState.DRAINING):
                continue
            if self._current.state is BackendState.READY:
                waiter.set_result(None)
            else:
                waiter.set_exception(self._failure())
        self._on_change(self.status)

    def _failure(self) -> LLMRuntimeError:
        error = self._last_error
        if self._current.state is BackendState.STOPPED or error is None:
            return BackendUnavailable(f"the engine is not running: {self._current.reason}")
        return error
