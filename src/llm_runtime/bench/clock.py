"""An event loop whose timers are exact to some tens of microseconds, and its instants.

epoll takes whole milliseconds, rounded up, so the usual loop (and uvloop) is up to a millisecond
late for every timer: 2 % of a 50 ms latency. select takes microseconds and an epoll descriptor can
itself be selected on, which costs one more system call per sleep and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import select
import selectors
import time
from collections.abc import Iterator

now = time.monotonic
"""The clock of every instant in this package; asyncio's loops use the same."""

MAX_SELECTABLE = 1024
GC_THRESHOLDS = (50_000, 20, 100)


def new_loop() -> asyncio.AbstractEventLoop:
    """For `asyncio.Runner(loop_factory=...)`."""
    if hasattr(selectors, "EpollSelector"):
        return asyncio.SelectorEventLoop(_ExactSelector())
    return asyncio.SelectorEventLoop()  # kqueue's timeouts are exact already


if hasattr(selectors, "EpollSelector"):

    class _ExactSelector(selectors.EpollSelector):
        """Owned by its loop."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0 and self.fileno() < MAX_SELECTABLE:
                select.select([self.fileno()], (), (), timeout)
                timeout = 0
            return super().select(timeout)


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
