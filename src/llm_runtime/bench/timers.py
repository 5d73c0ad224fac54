"""Timers that are exact to some tens of microseconds, on any loop.

Event loops sleep whole milliseconds, rounded up: 2 % of a 50 ms latency. A kernel timer is a
descriptor, and loops watch descriptors without rounding. Where the kernel has none (macOS), the
loop's own timers do, which there are exact enough.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import sys
import time
from collections.abc import Callable
from itertools import count

CLOCK_MONOTONIC = 1
ABSOLUTE = 1
NANOSECONDS = 1_000_000_000


class _Spec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer:
    """One callback to come. `cancel` is harmless after it came."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ExactTimers:
    """Owned by whoever made it, on the running loop; `close` gives its descriptor back."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._armed = float("inf")
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._descriptor = -1
        if self._libc is not None:
            self._descriptor = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if self._descriptor < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create")
            self._loop.add_reader(self._descriptor, self._fire)

    def call_at(self, at: float, callback: Callable[[], None]) -> Timer:
        """Calls back at a monotonic instant, from the loop; at once, but not from here, if it is past."""
        timer = Timer(callback)
        if self._libc is None:
            self._loop.call_at(at, _run, timer)
            return timer
        heapq.heappush(self._heap, (at, next(self._order), timer))
        if at < self._armed:
            self._arm(at)
        return timer

    def close(self) -> None:
        """What has not been called back is not any more. Idempotent."""
        for _, _, timer in self._heap:
            timer.cancel()
        self._heap.clear()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _fire(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return  # armed anew meanwhile
        self._armed = float("inf")
        heap = self._heap
        try:
            at = time.monotonic()
            while heap and heap[0][0] <= at:
                _run(heapq.heappop(heap)[2])
        finally:
            while heap and heap[0][2].callback is None:
                heapq.heappop(heap)
            if heap and self._descriptor >= 0 and heap[0][0] < self._armed:
                self._arm(heap[0][0])

    def _arm(self, at: float) -> None:
        assert self._libc is not None
        self._armed = at
        seconds, nanoseconds = divmod(max(1, int(at * NANOSECONDS)), NANOSECONDS)
        spec = _Spec(0, 0, seconds, nanoseconds)
        if self._libc.timerfd_settime(self._descriptor, ABSOLUTE, ctypes.byref(spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")


def _run(timer: Timer) -> None:
    callback, timer.callback = timer.callback, None
    if callback is not None:
        callback()
