"""What the process table says: start times, parents, sessions, environments.

Standard library only, imported by the guard, so it must stay quick to import. On Linux it reads
`/proc`; elsewhere it asks `ps`, slower and without environments, which is enough to recognise a
process again and to signal it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NamedTuple

LINUX = sys.platform == "linux"
ZOMBIE_STATES = frozenset("ZX")
PF_EXITING = 0x4  # of the kernel: set before a dying process closes its files and connections


class Process(NamedTuple):
    """One row. started: opaque, differs between two processes that had the same pid.

    state: the letter of the kernel; `session` and `group` are 0 where unknown. exiting: it is on its
    way out, though it may still be in the table as running.
    """

    pid: int
    parent: int
    group: int
    session: int
    state: str
    started: str
    exiting: bool = False


def read(pid: int) -> Process | None:
    """The row of one process, or None when there is none. A zombie still has a row."""
    if not LINUX:
        return _ps(str(pid)).get(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return _parse_stat(pid, file.read())
    except (OSError, ValueError, IndexError):
        return None


def table() -> dict[int, Process]:
    """All processes that may be looked at, by pid."""
    if not LINUX:
        return _ps(None)
    rows = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {row.pid: row for row in rows if row is not None}


def descendants(root: int, rows: dict[int, Process]) -> list[int]:
    """Pids below root, parents before children; root itself is not among them."""
    children: dict[int, list[int]] = {}
    for row in rows.values():
        children.setdefault(row.parent, []).append(row.pid)
    found: list[int] = []
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop(0)
        found.append(pid)
        waiting.extend(children.get(pid, ()))
    return found


def is_running(pid: int, started: str | None = None) -> bool:
    """Whether that very process still runs; a zombie does not."""
    row = read(pid)
    return row is not None and row.state not in ZOMBIE_STATES and started in (None, row.started)


def is_working(pid: int, started: str) -> bool:
    """As `is_running`, but a process that has begun to exit does not count: its connections close
    before it is a zombie, and whoever sees that wants to know why."""
    row = read(pid)
    return row is not None and row.state not in ZOMBIE_STATES and not row.exiting and row.started == started


def has_environment(pid: int, entry: bytes) -> bool:
    """Whether `entry` (b"NAME=value") is in the environment that process was started with."""
    if not LINUX:
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:
        return False


def boot_id() -> str:
    """Differs after every boot, so that a start time of an earlier boot never matches."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def send(pid: int, *signals: int) -> None:
    """Signals one process; one that is gone, or not ours, is left alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for number in signals:
            os.kill(pid, number)


def _parse_stat(pid: int, stat: bytes) -> Process:
    # The name may contain blanks and parentheses: the fields begin after the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        state=fields[0].decode(),
        started=fields[19].decode(),
        exiting=bool(int(fields[6]) & PF_EXITING),
    )


def _ps(pid: str | None) -> dict[int, Process]:
    import subprocess

    which = ["-A"] if pid is None else ["-p", pid]
    command = ["ps", *which, "-o", "pid=,ppid=,pgid=,stat=,lstart="]
    environment = {"LC_ALL": "C", "PATH": os.environ.get("PATH", "/bin:/usr/bin")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    rows: dict[int, Process] = {}
    for line in done.stdout.splitlines():
        number, parent, group, state, *started = line.split()
        rows[int(number)] = Process(int(number), int(parent), int(group), 0, state[0], " ".join(started))
    return rows
