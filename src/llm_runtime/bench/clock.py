"""The clock and the loop of load clients and stubs, and a collector that keeps out of the way."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import time
from collections.abc import Iterator

now = time.monotonic
"""The clock of every instant in this package; asyncio's loops and kernel timers use the same."""

GC_THRESHOLDS = (50_000, 20, 100)


def new_loop() -> asyncio.AbstractEventLoop:
    """For `asyncio.Runner(loop_factory=...)`: uvloop's where there is one, at half the CPU per wake-up.

    Its own timers are whole milliseconds; whatever must be exact uses `timers.ExactTimers`.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Keeps the garbage collector from walking over what exists already while a load runs.

    Everything alive is set aside, and collections come rarely; nothing a request leaves behind
    needs them.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def allow_many_connections() -> int:
    """Raises the limit of open files as far as it goes without privileges; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 16 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
