"""Keeps the machine's cores awake between tokens.

A virtual core that has nothing to do is given to somebody else; who wakes it up again pays for the way
there and for cold caches, now little and now a multiple. Processes of the kernel's idle class give way
to anything else, and leave the core where it is, for the price of one more switch between processes at each
wake-up. What `idle=poll` does for a kernel of one's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

from benchmarks.overhead.servers import on_cores

_SPIN = """import os, sys
os.nice(19)
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[1]):
    for _ in range(10_000_000):
        pass
"""


class Awake:
    """One such process for each core until the block is left; they end by themselves when this one does.
    Linux only."""

    def __init__(self, cores: Iterable[int]) -> None:
        self._cores = tuple(cores)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Awake:
        for core in self._cores:
            with on_cores(frozenset([core])):
                argv = [sys.executable, "-S", "-c", _SPIN, str(os.getpid())]
                self._processes.append(subprocess.Popen(argv))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()


def usable_cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))
