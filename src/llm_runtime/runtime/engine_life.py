"""One engine's life as the runtime follows it: a supervised task, and what a change of state means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.events import Events
from llm_runtime.engines.base import BackendState
from llm_runtime.runtime.replica import Replica

log = structlog.get_logger(__name__)


class EngineLife:
    """Owned by the runtime. `run` is supervised; whatever it raises is a failure of ours.

    on_change: told after every change of the engine's status, on the loop's thread.
    """

    def __init__(self, replica: Replica, events: Events, on_change: Callable[[], None]) -> None:
        self._replica = replica
        self._events = events
        self._on_change = on_change
        self._known: BackendState | None = None

    async def run(self) -> None:
        try:
            await self._replica.backend.start(self._changed)
        except LLMRuntimeError as error:
            # Its status says FAILED or backing off; health answers and waiters follow that.
            log.warning("engine.start_failed", replica=self._replica.id, error=error.message)
        self._changed()
        await asyncio.get_running_loop().create_future()

    def _changed(self) -> None:
        status = self._replica.backend.status
        if status.state is not self._known:
            self._known = status.state
            if status.state is not BackendState.ABSENT:
                self._events.engine_state(self._replica.id, status.state.value, status.reason)
        self._on_change()
