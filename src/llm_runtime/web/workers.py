"""Tasks that serve one request after the other. Waking one costs less than making one, for which asyncio runs
Python of its own (a name, a set of all tasks, a callback when it goes)."""

from __future__ import annotations

import asyncio
from typing import Final

from llm_runtime.web.asgi import ASGIApp
from llm_runtime.web.cycle import Cycle

MAX_IDLE: Final = 64


class _Worker:
    """cycle: what it is to serve next. wake: resolved when there is something."""

    __slots__ = ("cycle", "task", "wake")

    def __init__(self, cycle: Cycle) -> None:
        self.cycle: Cycle | None = cycle
        self.task: asyncio.Task[None] | None = None
        self.wake: asyncio.Future[None] | None = None


class Workers:
    """Of all connections of a server; used on its loop's thread.

    Only for cycles with an endpoint of ours: what an ASGI application leaves in its task's context must not
    be found there by another request.
    """

    def __init__(self) -> None:
        self._idle: Final[list[_Worker]] = []

    def serve(self, cycle: Cycle, app: ASGIApp, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Runs `cycle.run(app)` in a task that is free, or in a new one. It must not be cancelled for good
        once the cycle has ended."""
        while self._idle:
            worker = self._idle.pop()  # the last one that worked: its memory is warm
            task, wake = worker.task, worker.wake
            if task is not None and wake is not None and not wake.done():
                worker.cycle = cycle
                wake.set_result(None)
                return task
        worker = _Worker(cycle)
        worker.task = task = asyncio.Task(self._work(worker, app, loop), loop=loop, name="requests")
        return task

    async def _work(self, worker: _Worker, app: ASGIApp, loop: asyncio.AbstractEventLoop) -> None:
        task = worker.task
        assert task is not None
        while (cycle := worker.cycle) is not None:
            worker.cycle = None
            await cycle.run(app)
            del cycle  # nothing of a request outlives it
            if task.cancelling() or len(self._idle) >= MAX_IDLE:
                break
            worker.wake = wake = loop.create_future()
            self._idle.append(worker)
            await wake
        worker.task = None  # which refers to this
