"""An event loop whose time jumps to the next timer instead of waiting, so that timing is exact."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Timer(asyncio.TimerHandle):
    """Of those due at the same instant the one set first fires first, as in libuv; asyncio's own come in
    whatever order its heap has them, which changes with every other timer there is."""

    number = 0

    def __lt__(self, other: asyncio.TimerHandle) -> bool:
        assert isinstance(other, Timer)
        return (self.when(), self.number) < (other.when(), other.number)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Nothing outside the process may be waited for: with no timer and nothing ready it would hang."""

    _ready: Any
    _scheduled: Any

    def __init__(self) -> None:
        super().__init__()
        self._virtual_now = 1000.0
        self._numbers = itertools.count()

    def time(self) -> float:
        return self._virtual_now

    def block(self, seconds: float) -> None:
        """As if a callback had held the loop up for so long."""
        self._virtual_now += seconds

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = Timer(when, callback, args, self, context)
        timer.number = next(self._numbers)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _run_once(self) -> None:
        if not self._ready:
            live = [handle for handle in self._scheduled if not handle.cancelled()]
            if not live:
                raise RuntimeError("deadlock: nothing is ready and no timer is set")
            self._virtual_now = max(self._virtual_now, min(handle.when() for handle in live))
        super()._run_once()  # type: ignore[misc]


class LoopClock:
    """`Clock` on the running loop's time."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return 0.0


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
