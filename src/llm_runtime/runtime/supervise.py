"""Long-lived tasks with an owner: each has a name and a rule for what its death means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import structlog

log = structlog.get_logger(__name__)

RESTART_PAUSE_S = 1.0

Work = Callable[[], Coroutine[Any, Any, None]]


class TaskSupervisor:
    """Owned by the runtime, closed with it. `restart` tasks come back after a pause; the end of a
    `fatal` one, in whatever way, is told to `on_fatal`: the process cannot go on without it.
    """

    def __init__(self, on_fatal: Callable[[str], None]) -> None:
        self._on_fatal = on_fatal
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def spawn(self, name: str, work: Work, policy: Literal["restart", "fatal"]) -> None:
        """Runs `work()` until `aclose`. Raises ValueError for a name in use."""
        if name in self._tasks:
            raise ValueError(f"a task named {name!r} is already supervised")
        loop = asyncio.get_running_loop()
        self._tasks[name] = loop.create_task(self._watch(name, work, policy), name=name)

    async def _watch(self, name: str, work: Work, policy: str) -> None:
        while True:
            reason = await _run_to_end(name, work, policy)
            if policy == "fatal":
                self._on_fatal(reason)
                return
            await asyncio.sleep(RESTART_PAUSE_S)

    async def aclose(self) -> None:
        """Cancels every task and waits for all of them. Idempotent."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_to_end(name: str, work: Work, policy: str) -> str:
    """Why it ended, in words. Raises CancelledError only where this very task was asked to stop: one
    that leaks from something cancelled elsewhere is a failure like any other."""
    try:
        await work()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        log.error("task.cancelled_from_within", task=name, policy=policy)
        return f"{name} was cancelled"
    except Exception as error:
        log.exception("task.crashed", task=name, policy=policy)
        return f"{name} failed ({type(error).__name__})"
    log.error("task.ended", task=name, policy=policy)
    return f"{name} ended"
