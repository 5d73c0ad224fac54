"""The process table, by `/proc` and by `ps`: both must tell the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from llm_runtime.engines import proctable
from llm_runtime.engines.proctable import Process


@pytest.fixture(params=["proc", "ps"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "ps":
        if shutil.which("ps") is None:
            pytest.skip("no ps")
        monkeypatch.setattr(proctable, "LINUX", False)
    elif sys.platform != "linux":
        pytest.skip("no /proc")
    return str(request.param)


def test_reads_itself(source: str) -> None:
    row = proctable.read(os.getpid())
    assert row is not None
    assert (row.pid, row.parent, row.group) == (os.getpid(), os.getppid(), os.getpgrp())
    assert row.started == proctable.table()[os.getpid()].started
    assert proctable.is_running(os.getpid(), row.started)
    assert not proctable.is_running(os.getpid(), "another start")


def test_zombie_does_not_run(source: str) -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    row = proctable.read(process.pid)
    assert row is not None
    assert row.state in proctable.ZOMBIE_STATES
    assert not proctable.is_running(process.pid)
    process.wait()
    assert proctable.read(process.pid) is None


def test_name_with_parentheses_and_blanks() -> None:
    fields = ["1"] * 50
    fields[0:4] = ["S", "11", "12", "13"]
    fields[19] = "987"
    stat = b"42 (a) b (c)) " + " ".join(fields).encode()
    assert proctable._parse_stat(42, stat) == Process(42, 11, 12, 13, "S", "987")


def test_descendants_are_found_parents_first() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 2, 6: 1, 7: 99}
    rows = {pid: Process(pid, parent, 0, 0, "S", "1") for pid, parent in parents.items()}
    assert proctable.descendants(2, rows) == [3, 5, 4]
    assert proctable.descendants(7, rows) == []


def test_signal_to_nobody_is_no_error() -> None:
    proctable.send(2**22 + 1, 15)


def test_a_running_process_works_and_another_start_of_its_pid_does_not() -> None:
    row = proctable.read(os.getpid())
    assert row is not None
    assert not row.exiting
    assert proctable.is_working(os.getpid(), row.started)
    assert not proctable.is_working(os.getpid(), "another")


def test_a_process_on_its_way_out_no_longer_works() -> None:
    stat = b"7 (engine) R 1 7 7 0 -1 4194308 " + b"0 " * 12 + b"99 " + b"0 " * 10
    row = proctable._parse_stat(7, stat)
    assert row.exiting
    assert row.started == "99"
