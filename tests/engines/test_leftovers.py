"""What an earlier run left is found and removed; what is not ours, or still owned, is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llm_runtime.engines import leftovers, proctable
from llm_runtime.engines.leftovers import GuardNote, Identity
from tests.engines.processes import cleaned_up, linux_only, program, wait_ended

GONE = Identity(2**22 + 1, "1")  # above the largest pid of Linux


@contextmanager
def running(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def note(**changed: object) -> GuardNote:
    fields: dict[str, object] = {
        "boot": proctable.boot_id(),
        "token": "token-of-a-test",
        "command": "engine#0",
        "owner": GONE,
        "guard": GONE,
        "child": None,
        "scratch": None,
    }
    return GuardNote(**{**fields, **changed})  # type: ignore[arg-type]


def put(state_dir: Path, what: GuardNote) -> Path:
    path = state_dir / "engine.json"
    leftovers.write_note(str(path), what)
    return path


def test_note_survives_the_file(tmp_path: Path) -> None:
    full = note(child=Identity(7, "8"), scratch="/x")
    assert leftovers.read_note(str(put(tmp_path, full))) == full
    assert leftovers.read_note(str(put(tmp_path, note()))) == note()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"boot": 1, "child": 5})])
def test_file_that_is_no_note_is_removed(tmp_path: Path, text: str) -> None:
    (tmp_path / "engine.json").write_text(text)
    assert leftovers.remove_leftovers(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_missing_directory_has_no_leftovers(tmp_path: Path) -> None:
    assert leftovers.remove_leftovers(str(tmp_path / "never-made")) == []


def test_kills_a_child_whose_owner_and_guard_are_gone(tmp_path: Path) -> None:
    with running("sleep", "60") as process:
        path = put(tmp_path, note(child=Identity.of(process.pid)))
        (leftover,) = leftovers.remove_leftovers(str(tmp_path))
        assert leftover.killed == (process.pid,)
        assert leftover.survivors == ()
        assert process.wait(5) == -signal.SIGKILL
        assert not path.exists()


def test_reused_pid_is_left_alone(tmp_path: Path) -> None:
    with running("sleep", "60") as process:
        put(tmp_path, note(child=Identity(process.pid, "1"), guard=Identity(process.pid, "1")))
        (leftover,) = leftovers.remove_leftovers(str(tmp_path))
        assert leftover.killed == ()
        assert process.poll() is None
        assert list(tmp_path.iterdir()) == []


def test_note_of_an_earlier_boot_kills_nobody(tmp_path: Path) -> None:
    with running("sleep", "60") as process:
        put(tmp_path, note(boot="another", child=Identity.of(process.pid)))
        assert leftovers.remove_leftovers(str(tmp_path)) == []
        assert process.poll() is None
        assert list(tmp_path.iterdir()) == []


def test_engine_of_a_living_owner_is_left_alone(tmp_path: Path) -> None:
    with running("sleep", "60") as process:
        path = put(tmp_path, note(owner=Identity.of(os.getpid()), child=Identity.of(process.pid)))
        assert leftovers.remove_leftovers(str(tmp_path)) == []
        assert process.poll() is None
        assert path.exists()


@linux_only
def test_finds_by_its_mark_what_left_session_and_parents(tmp_path: Path) -> None:
    marked = {leftovers.TOKEN_VARIABLE: "token-of-a-test"}
    others = {leftovers.TOKEN_VARIABLE: "token-of-another"}
    with running("sleep", "60", **marked) as ours, running("sleep", "60", **others) as foreign:
        put(tmp_path, note(guard=Identity(GONE.pid, Identity.of(ours.pid).started)))
        (leftover,) = leftovers.remove_leftovers(str(tmp_path))
        assert leftover.killed == (ours.pid,)
        assert foreign.poll() is None


@linux_only
def test_finds_by_its_session_what_lost_the_mark(tmp_path: Path) -> None:
    """As programs do that write their title over their environment."""
    code = "import os; print(os.posix_spawn('/bin/sleep', ['sleep', '60'], {}))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        member = int(leader.stdout.readline())
    with cleaned_up([member]):
        row = proctable.read(member)
        assert row is not None
        assert row.session == leader.pid
        put(tmp_path, note(guard=Identity(leader.pid, row.started)))
        (leftover,) = leftovers.remove_leftovers(str(tmp_path))
        assert leftover.killed == (member,)
        assert wait_ended([member], 2) == []


def test_scratch_directory_is_removed_with_the_note(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "engine.sock").touch()
    (tmp_path / "state").mkdir()
    put(tmp_path / "state", note(scratch=str(scratch)))
    leftovers.remove_leftovers(str(tmp_path / "state"))
    assert not scratch.exists()


@linux_only
@pytest.mark.parametrize("flags", [(), ("deaf",), ("stopped",), ("deaf", "stopped")])
def test_f37_a_killed_owner_leaves_nothing(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with running(*program("owner", str(tmp_path), *flags)) as owner:
        assert owner.stdout is not None
        guard_pid, *pids = json.loads(owner.stdout.readline())
        with cleaned_up(pids):
            owner.kill()
            assert wait_ended([guard_pid, *pids], 3) == []  # grace 0.2 s


@linux_only
def test_f37_d_start_right_after_owner_and_guard_were_killed(tmp_path: Path) -> None:
    with running(*program("owner", str(tmp_path), "deaf")) as owner:
        assert owner.stdout is not None
        guard_pid, *pids = json.loads(owner.stdout.readline())
        with cleaned_up(pids):
            owner.kill()
            os.kill(guard_pid, signal.SIGKILL)
            owner.wait()
            (leftover,) = leftovers.remove_leftovers(str(tmp_path))
            assert set(pids[1:]) <= set(leftover.killed)
            assert wait_ended(pids, 1) == []
    with running(*program("owner", str(tmp_path))) as second:
        assert second.stdout is not None
        guard_pid, *pids = json.loads(second.stdout.readline())
        with cleaned_up(pids):
            assert leftovers.remove_leftovers(str(tmp_path)) == []  # a third start touches nothing
            assert all(proctable.is_running(pid) for pid in pids)
            second.kill()
            assert wait_ended([guard_pid, *pids], 3) == []
