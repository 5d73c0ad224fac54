"""Waiting for an instant and waiting for a place, both to be ended at once when the run stops."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from llm_runtime.bench.clock import now
from llm_runtime.bench.timers import ExactTimers

AWAKE_S = 0.005
IDLE_S = 0.1
"""An engine on the same processors goes through all of its weights for every token, so who has slept for a
while finds nothing of his in the caches, and takes milliseconds to get going."""


class Sleeper:
    """Owned by one driver. After `wake_all` nothing sleeps any more."""

    def __init__(self, timers: ExactTimers) -> None:
        self._timers = timers
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[None]] = set()
        self._over = False

    async def until(self, at: float) -> bool:
        """Sleeps until a monotonic instant, not at all if it is past; False when woken before it."""
        if self._over or at <= now():
            return not self._over
        future = self._loop.create_future()
        timer = self._timers.call_at(at, partial(_resolve, future))
        self._waiting.add(future)
        try:
            await future
        finally:
            timer.cancel()
            self._waiting.discard(future)
        return not self._over

    async def punctually(self, at: float) -> bool:
        """As `until`, but awake some milliseconds before, after a longer sleep."""
        if at - now() > IDLE_S and await self.until(at - AWAKE_S):
            while not self._over and now() < at:  # noqa: ASYNC110 - awake is what it wants to be
                await asyncio.sleep(0)
        return await self.until(at)

    def wake_all(self) -> None:
        self._over = True
        for future in self._waiting:
            _resolve(future)


class Gate:
    """A cap of requests in flight, first come first served. Owned by one driver.

    After `close` nobody enters and those waiting are told so.
    """

    def __init__(self, places: int | None) -> None:
        """places: None for no cap at all."""
        self._free = places
        self._queue: deque[asyncio.Future[bool]] = deque()
        self._closed = False

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    async def enter(self) -> bool:
        """True with a place, which must be left again; False once closed."""
        if self._closed:
            return False
        if self._free is None:
            return True
        if self._free > 0 and not self._queue:
            self._free -= 1
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.result():
                self.leave()
            raise

    def leave(self) -> None:
        if self._free is None:
            return
        while self._queue:
            future = self._queue.popleft()
            if not future.done():
                future.set_result(True)  # the place goes straight to the next in line
                return
        self._free += 1

    def close(self) -> None:
        self._closed = True
        while self._queue:
            future = self._queue.popleft()
            if not future.done():
                future.set_result(False)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
