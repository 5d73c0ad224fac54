"""The note a guard leaves on disk, and the removal of what an earlier run left behind.

A guard cleans up whenever it lives to see its owner go. This module is for the other case: the
guard itself was killed. Standard library only, because the guard imports it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from llm_runtime.engines import proctable
from llm_runtime.engines.proctable import Process

TOKEN_VARIABLE = "ENGINE_GUARD_TOKEN"  # noqa: S105 - the name of a mark, not a secret
"""Every process below a guard carries it in its environment, so that it is found again even after
it left the session and lost its parents."""

POLL_S = 0.005


class Identity(NamedTuple):
    """A process that can be recognised again, also after its pid was given to another."""

    pid: int
    started: str

    @property
    def running(self) -> bool:
        return proctable.is_running(self.pid, self.started)

    @classmethod
    def of(cls, pid: int) -> Identity:
        row = proctable.read(pid)
        return cls(pid, row.started if row is not None else "")


class GuardNote(NamedTuple):
    """What a state file holds. owner: whose engine it is; command: a fingerprint for the log."""

    boot: str
    token: str
    command: str
    owner: Identity
    guard: Identity
    child: Identity | None
    scratch: str | None


class Leftover(NamedTuple):
    """Something an earlier run left. survivors: pids that even SIGKILL did not remove in time."""

    command: str
    killed: tuple[int, ...]
    survivors: tuple[int, ...]


def write_note(path: str, note: GuardNote) -> None:
    """Replaces the file in one step; readable by the owner only."""
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(note._asdict(), file)
    os.replace(temporary, path)


def read_note(path: str) -> GuardNote | None:
    """None for a file that is gone or is not a note."""
    try:
        with open(path) as file:
            fields: dict[str, Any] = json.load(file)
        child = fields["child"]
        return GuardNote(
            boot=str(fields["boot"]),
            token=str(fields["token"]),
            command=str(fields["command"]),
            owner=_identity(fields["owner"]),
            guard=_identity(fields["guard"]),
            child=None if child is None else _identity(child),
            scratch=None if fields["scratch"] is None else str(fields["scratch"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_leftovers(state_dir: str, within_s: float = 5.0) -> list[Leftover]:
    """Kills whatever guards of dead owners left running, and removes their files.

    Blocks for at most about within_s per leftover: call it before the loop runs, or in a thread.
    Engines whose owner lives are left alone. A note whose processes could not be killed stays.
    """
    found: list[Leftover] = []
    for path in _notes(state_dir):
        note = read_note(path)
        if note is not None and note.boot == proctable.boot_id() and note.owner.running:
            continue
        leftover = remove_leftover(path, within_s)
        if leftover is not None:
            found.append(leftover)
    return found


def remove_leftover(path: str, within_s: float = 5.0) -> Leftover | None:
    """The same for one note, whoever owns it; None if nothing can be running any more."""
    leftover = None
    note = read_note(path)
    if note is not None and note.boot == proctable.boot_id():
        leftover = _kill_all(note, within_s)
        if leftover.survivors:
            return leftover
    if note is not None and note.scratch is not None:
        remove_scratch(note.scratch)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return leftover


def remove_scratch(directory: str) -> None:
    """Removes an engine's private directory: its files and itself, nothing below subdirectories."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def _notes(state_dir: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return [os.path.join(state_dir, name) for name in os.listdir(state_dir) if name.endswith(".json")]
    return []


def _kill_all(note: GuardNote, within_s: float) -> Leftover:
    deadline = time.monotonic() + within_s
    killed: set[int] = set()
    while alive := set(_members(note, proctable.table().values())):
        if time.monotonic() > deadline:
            break
        killed |= alive
        for pid in alive:
            proctable.send(pid, signal.SIGKILL)
        time.sleep(POLL_S)  # they are not our children: there is nothing to wait on
    return Leftover(note.command, tuple(sorted(killed)), tuple(sorted(alive)))


def _members(note: GuardNote, rows: Iterable[Process]) -> Iterable[int]:
    """Everything below the guard, by four marks: no single one survives every way to die."""
    running = {row.pid: row for row in rows if row.state not in proctable.ZOMBIE_STATES}
    roots = [who for who in (note.guard, note.child) if who is not None and _is(who, running)]
    members = {who.pid for who in roots}
    for who in roots:
        members.update(proctable.descendants(who.pid, running))
    mark = f"{TOKEN_VARIABLE}={note.token}".encode()
    # The guard's pid names its session for as long as the session has members; somebody else's
    # session can bear it only once a new leader with that pid was there.
    session_is_ours = note.guard.pid not in running or _is(note.guard, running)
    for pid, row in running.items():
        in_session = session_is_ours and row.session == note.guard.pid and _not_older(row, note.guard)
        if in_session or (_not_older(row, note.guard) and proctable.has_environment(pid, mark)):
            members.add(pid)
    return members - {os.getpid()}


def _is(who: Identity, running: dict[int, Process]) -> bool:
    row = running.get(who.pid)
    return row is not None and row.started == who.started


def _not_older(row: Process, guard: Identity) -> bool:
    if not (row.started.isdigit() and guard.started.isdigit()):
        return True
    return int(row.started) >= int(guard.started)


def _identity(fields: list[Any]) -> Identity:
    pid, started = fields
    return Identity(int(pid), str(started))
