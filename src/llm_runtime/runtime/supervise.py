"""Long-lived tasks with an owner: each has a name and a rule for what its death means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import structlog

log = structlog.get_logger(__name__)

RESTART_PAUSE_S = 1.0


class TaskSupervisor:
    """Owned by the runtime, closed with it. `restart` tasks come back after a pause; the end of a
    `fatal` one, in whatever way, is told to `on_fatal` once: the process cannot go on without it.
    """

    def __init__(self, on_fatal: Callable[[str], None]) -> None:
        self._on_fatal = on_fatal
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closing = False

    def spawn(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], policy: Literal["restart", "fatal"]
    ) -> None:
        """Runs `work()` until it is cancelled by `aclose`. Raises ValueError for a name in use."""
        if name in self._tasks:
            raise ValueError(f"a task named {name!r} is already supervised")
        loop = asyncio.get_running_loop()
        self._tasks[name] = loop.create_task(self._watch(name, work, policy), name=name)

    async def _watch(self, name: str, work: Callable[[], Coroutine[Any, Any, None]], policy: str) -> None:
        while not self._closing:
            try:
                await work()
                reason = f"{name} ended"
            except asyncio.CancelledError:
                if self._closing:
                    raise
                reason = f"{name} was cancelled"
            except Exception as error:
                log.exception("task.crashed", task=name, policy=policy)
                reason = f"{name} failed ({type(error).__name__})"
            if policy == "fatal":
                self._on_fatal(reason)
                return
            await asyncio.sleep(RESTART_PAUSE_S)

    async def aclose(self) -> None:
        """Cancels every task and waits for all of them. Idempotent."""
        self._closing = True
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
