"""The guard as a program: nothing it starts may outlive it, its owner, or a wish to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llm_runtime.engines import guard, leftovers, proctable
from tests.engines.processes import cleaned_up, linux_only, program, wait_ended

GUARD = (sys.executable, "-P", "-m", "llm_runtime.engines.guard")


class Guarded:
    """A guard over a program that prints its pids; `pipe` is our end of the owner's pipe."""

    def __init__(self, state: Path, command: tuple[str, ...], grace_s: float = 5.0) -> None:
        read_fd, self.pipe = os.pipe()
        options = ("--state", str(state), "--pipe-fd", str(read_fd), "--grace", str(grace_s))
        self.process = subprocess.Popen(
            [*GUARD, *options, "--", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(read_fd,),
            start_new_session=True,
        )
        os.close(read_fd)

    def pids(self) -> list[int]:
        assert self.process.stdout is not None
        return list(json.loads(self.process.stdout.readline()))

    def close_pipe(self) -> None:
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def ends(self, timeout_s: float) -> tuple[int, float]:
        """Exit code and seconds until the guard ended."""
        begun = time.monotonic()
        code = self.process.wait(timeout_s)
        return code, time.monotonic() - begun


@contextmanager
def guarded(state: Path, command: tuple[str, ...], grace_s: float = 5.0) -> Iterator[Guarded]:
    it = Guarded(state, command, grace_s)
    try:
        yield it
    finally:
        it.close_pipe()
        it.process.kill()
        it.process.communicate()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "engine.json"


@linux_only
@pytest.mark.parametrize("how", ["pipe closed", "SIGTERM", "SIGINT"])
def test_f37_a_ends_the_whole_family_and_reaps_it(state: Path, how: str) -> None:
    with guarded(state, program("family")) as it:
        pids = it.pids()
        with cleaned_up(pids):
            if how == "pipe closed":
                it.close_pipe()
            else:
                it.process.send_signal(getattr(signal, how))
            code, took_s = it.ends(5)
            assert [pid for pid in pids if proctable.read(pid)] == []  # no orphan, and no zombie
            assert code == 128 + signal.SIGTERM
            assert took_s < 2
            assert not state.exists()


@linux_only
def test_f37_a_kills_after_the_grace_what_ignores_sigterm(state: Path) -> None:
    with guarded(state, program("family", "deaf"), grace_s=0.5) as it:
        pids = it.pids()
        with cleaned_up(pids):
            it.close_pipe()
            code, took_s = it.ends(5)
            assert [pid for pid in pids if proctable.read(pid)] == []
            assert code == 128 + signal.SIGKILL
            assert 0.4 < took_s < 2


@linux_only
def test_force_signal_ends_the_grace_at_once(state: Path) -> None:
    with guarded(state, program("family", "deaf"), grace_s=60) as it:
        pids = it.pids()
        with cleaned_up(pids):
            it.process.send_signal(signal.SIGTERM)
            it.process.send_signal(signal.SIGUSR1)
            code, _ = it.ends(5)
            assert code == 128 + signal.SIGKILL
            assert [pid for pid in pids if proctable.read(pid)] == []


@linux_only
def test_stopped_processes_get_the_chance_to_end_by_themselves(state: Path) -> None:
    with guarded(state, program("family", "stopped"), grace_s=60) as it:
        pids = it.pids()
        with cleaned_up(pids):
            it.close_pipe()
            code, _ = it.ends(5)
            assert code == 128 + signal.SIGTERM
            assert [pid for pid in pids if proctable.read(pid)] == []


@linux_only
def test_stopped_and_deaf_processes_are_killed(state: Path) -> None:
    with guarded(state, program("family", "deaf", "stopped"), grace_s=0.2) as it:
        pids = it.pids()
        with cleaned_up(pids):
            it.close_pipe()
            code, _ = it.ends(5)
            assert code == 128 + signal.SIGKILL
            assert [pid for pid in pids if proctable.read(pid)] == []


@linux_only
def test_command_that_ends_takes_its_descendants_along_and_passes_its_code(state: Path) -> None:
    with guarded(state, program("family", "deaf", "leave")) as it:
        pids = it.pids()
        with cleaned_up(pids):
            code, took_s = it.ends(5)
            assert code == 3
            assert took_s < 1.5  # well below the grace: the engine is gone, somebody waits for the news
            assert [pid for pid in pids if proctable.read(pid)] == []


@linux_only
def test_command_dies_with_a_killed_guard_and_the_rest_is_found_by_its_note(state: Path) -> None:
    with guarded(state, program("family", "deaf")) as it:
        pids = it.pids()
        with cleaned_up(pids):
            it.process.kill()
            assert wait_ended(pids[:1], 2) == []  # by the kernel
            assert proctable.is_running(pids[2])
            leftover = leftovers.remove_leftover(str(state))
            assert leftover is not None
            assert set(pids[1:]) <= set(leftover.killed)
            assert leftover.survivors == ()
            assert wait_ended(pids, 2) == []
            assert not state.exists()


@linux_only
def test_stopped_command_dies_with_a_killed_guard(state: Path) -> None:
    with guarded(state, program("family", "stopped")) as it:
        pids = it.pids()
        with cleaned_up(pids):
            it.process.kill()
            assert wait_ended(pids[:1], 2) == []
            leftovers.remove_leftover(str(state))
            assert wait_ended(pids, 2) == []


@pytest.mark.parametrize(
    ("make", "code", "words"), [(None, 127, "No such file"), ("not executable", 126, "Permission denied")]
)
def test_command_that_cannot_start(
    state: Path, tmp_path: Path, make: str | None, code: int, words: str
) -> None:
    target = tmp_path / "engine"
    if make is not None:
        target.write_text("#!/bin/sh\n")
    with guarded(state, (str(target),)) as it:
        assert it.ends(5)[0] == code
        assert it.process.stderr is not None
        assert words in it.process.stderr.read().decode()
        assert not state.exists()


def test_scratch_directory_is_removed_at_the_end(state: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "engine.sock").touch()
    read_fd, write_fd = os.pipe()
    options = ["--state", str(state), "--pipe-fd", str(read_fd), "--scratch", str(scratch)]
    subprocess.run([*GUARD, *options, "--", "true"], pass_fds=(read_fd,), check=True, timeout=10)
    os.close(read_fd)
    os.close(write_fd)
    assert not scratch.exists()


def test_note_names_the_processes_and_is_private(state: Path) -> None:
    with guarded(state, program("family")) as it:
        pids = it.pids()
        with cleaned_up(pids):
            note = leftovers.read_note(str(state))
            assert note is not None
            assert note.guard.pid == it.process.pid
            assert note.child is not None
            assert note.child.pid == pids[0]
            assert note.owner.pid == os.getpid()
            assert note.owner.running
            assert note.child.running
            assert state.stat().st_mode & 0o077 == 0


def test_starts_lean() -> None:
    """It is started with every engine and lives as long: no heavy module may creep in."""
    code = "import sys, llm_runtime.engines.guard; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {"asyncio", "argparse", "subprocess", "pydantic", "logging", "llm_runtime.core", "orjson"}
    assert heavy & set(loaded.split()) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--state", "x", "--pipe-fd", "3"],
        ["--state", "x", "--pipe-fd", "3", "--"],
        ["--state", "x", "--", "true"],
        ["--state", "x", "--pipe-fd", "three", "--", "true"],
        ["--state", "x", "--pipe-fd", "3", "--grace", "soon", "--", "true"],
        ["--state", "x", "--pipe-fd", "3", "--nonsense", "1", "--", "true"],
        ["--state", "--pipe-fd", "3", "--", "true"],
    ],
)
def test_refuses_other_arguments(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        guard.parse(arguments)
    assert "guard" in str(refused.value)


def test_parses_its_own_form() -> None:
    options = guard.parse(
        ["--state", "s", "--pipe-fd", "3", "--grace", "1.5", "--scratch", "d", "--", "a", "--", "b"]
    )
    assert options == guard.Options("s", 3, 1.5, "d", ["a", "--", "b"])
