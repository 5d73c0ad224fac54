"""Signals are ours: the first one drains with the socket open, a second one ends at once.

Works under any way of starting uvicorn, because the lifespan replaces the handlers that uvicorn has
installed by then. Stock uvicorn would close its listeners first, so nobody could be told 503.
Under a server that is not uvicorn nothing is replaced.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from types import FrameType
from typing import Any

import structlog

from llm_runtime.runtime.runtime import Runtime

log = structlog.get_logger(__name__)

FATAL_EXIT_S = 4.0
FATAL_STATUS = 70
FORCED_EXIT_S = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalDrain:
    """Owned by the lifespan: `take_over` at start-up, `restore` at shutdown, both on the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._server: Any = None
        self._previous: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._num_signals = 0
        self._fatal = False

    @property
    def server_config(self) -> Any:
        """uvicorn's; None where the server is not uvicorn."""
        return getattr(self._server, "config", None)

    @property
    def bound_host(self) -> str | None:
        """The address uvicorn was told to bind; None where the server is not uvicorn."""
        return getattr(self.server_config, "host", None)

    @property
    def num_workers(self) -> int:
        """Processes that uvicorn was told to serve with; this is one of them."""
        return getattr(self.server_config, "workers", None) or 1

    def take_over(self) -> None:
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            return
        server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        if server is None or not hasattr(server, "should_exit"):
            return
        self._server = server
        self._runtime.on_fatal = self._on_fatal
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._on_signal)

    async def restore(self) -> None:
        """The last thing the lifespan does. Does not return after a fatal failure: all is closed by now,
        and uvicorn, knowing nothing of it, would end the process with 0."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._fatal:
            os._exit(FATAL_STATUS)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin, signal.Signals(number))

    def _begin(self, number: signal.Signals) -> None:
        self._num_signals += 1
        if self._num_signals == 1:
            log.info("drain.begin", signal=number.name, num_active=self._runtime.num_active)
            self._runtime.begin_drain()
            assert self._loop is not None
            self._task = self._loop.create_task(self._drain(), name="drain")
        else:
            log.warning("drain.cut_short", signal=number.name, num_active=self._runtime.num_active)
            # Whatever hangs then, a connection or an engine that does not stop: its guard removes it.
            _exit_later(FORCED_EXIT_S, 128 + number)
            self._runtime.end_drain()

    async def _drain(self) -> None:
        try:
            await self._runtime.drained()
            log.info("drain.end")
        finally:
            self._server.should_exit = True

    def _on_fatal(self) -> None:
        """Leaves by uvicorn's own way, so that clients still get their answers; and by force if that
        takes too long, because a half-dead server is worse than none."""
        log.error("runtime.fatal", reason=self._runtime.fatal_reason)
        self._fatal = True
        _exit_later(FATAL_EXIT_S, FATAL_STATUS)
        self._server.should_exit = True


def _exit_later(delay_s: float, status: int) -> None:
    timer = threading.Timer(delay_s, os._exit, args=(status,))
    timer.daemon = True
    timer.start()
