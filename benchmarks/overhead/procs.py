"""CPU time and memory of a process and all its descendants, from outside. Linux only.

CPU time comes from the kernel's clock of each process (nanoseconds, all threads, ended ones too);
`/proc/<pid>/stat` counts in ticks of 10 ms, which is several per cent of what is measured here. What
children used that have ended is added from their parents' `cutime` and `cstime`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
CPUCLOCK_SCHED = 2
"""Which of the three clocks of a process: run time as the scheduler knows it (linux/posix-timers.h)."""


@dataclass(frozen=True, slots=True)
class Stat:
    """Of one process; seconds. children_s: of its children that have ended and been waited for."""

    pid: int
    parent: int
    session: int
    ticks_s: float
    children_s: float


def parse_stat(text: str) -> Stat:
    """Of the text of `/proc/<pid>/stat`. The name in it may hold blanks and brackets."""
    pid = int(text[: text.index(" ")])
    fields = text[text.rindex(")") + 2 :].split()
    user, system, children_user, children_system = (int(field) * TICK_S for field in fields[11:15])
    return Stat(pid, int(fields[1]), int(fields[3]), user + system, children_user + children_system)


def all_stats() -> list[Stat]:
    """Of every process there is at the moment."""
    found = []
    for entry in os.scandir(PROC):
        if entry.name.isdigit():
            try:
                found.append(parse_stat(Path(entry.path, "stat").read_text("utf-8", "replace")))
            except (OSError, ValueError):
                continue  # it ended meanwhile
    return found


def tree(root: int, stats: Iterable[Stat]) -> list[Stat]:
    """The process, its descendants, and whoever shares its session without being a descendant."""
    by_parent: dict[int, list[Stat]] = {}
    members: dict[int, Stat] = {}
    for stat in stats:
        by_parent.setdefault(stat.parent, []).append(stat)
        if root in (stat.pid, stat.session):
            members[stat.pid] = stat
    waiting = list(members)
    while waiting:
        for child in by_parent.get(waiting.pop(), ()):
            if child.pid not in members:
                members[child.pid] = child
                waiting.append(child.pid)
    return list(members.values())


def cpu_s(root: int) -> float:
    """CPU seconds of the tree so far. Takes milliseconds: not for every token."""
    return sum(_cpu_s(stat) for stat in tree(root, all_stats()))


def _cpu_s(stat: Stat) -> float:
    try:
        own_s = time.clock_gettime((~stat.pid << 3) | CPUCLOCK_SCHED)
    except OSError:
        own_s = stat.ticks_s
    return own_s + stat.children_s


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, summed over the tree; shared pages count in each process that maps them."""

    resident: int
    peak: int
    num_processes: int


def memory(root: int) -> Memory:
    """peak: the sum of each living process's own peak."""
    resident = peak = count = 0
    for stat in tree(root, all_stats()):
        try:
            text = Path(PROC, str(stat.pid), "status").read_text("utf-8", "replace")
        except OSError:
            continue
        values = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Vm"))
        resident += _kilobytes(values.get("VmRSS", "0"))
        peak += _kilobytes(values.get("VmHWM", "0"))
        count += 1
    return Memory(resident, peak, count)


def _kilobytes(text: str) -> int:
    return int(text.split(maxsplit=1)[0]) * 1024


def parse_busy(line: str) -> float:
    """Seconds that all cores have been busy, from the first line of `/proc/stat`; stolen time counts."""
    ticks = [int(field) for field in line.split()[1:9]]
    idle, waiting = ticks[3], ticks[4]
    return (sum(ticks) - idle - waiting) * TICK_S


def machine_busy_s() -> float:
    with Path(PROC, "stat").open(encoding="ascii") as file:
        return parse_busy(file.readline())
