"""Cores are kept awake by processes that give way to everybody and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.overhead.awake import Awake, usable_cores
from benchmarks.overhead.procs import all_stats, tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def children(of: int) -> list[int]:
    return [stat.pid for stat in tree(of, all_stats()) if stat.parent == of]


def wait_for_idle_class(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(os.sched_getscheduler(pid) != os.SCHED_IDLE for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_for_each_core_and_none_afterwards() -> None:
    before = set(children(os.getpid()))
    with Awake(usable_cores()):
        started = set(children(os.getpid())) - before
        cores = sorted(tuple(os.sched_getaffinity(pid)) for pid in started)  # sets have no order of their own
        assert cores == [(core,) for core in usable_cores()]
        wait_for_idle_class(sorted(started))
    assert not any(Path("/proc", str(pid)).exists() for pid in started)
    assert os.sched_getaffinity(0) == set(usable_cores())


def test_they_end_when_their_parent_is_killed() -> None:
    code = (
        "import time; from benchmarks.overhead.awake import Awake, usable_cores\n"
        "with Awake(usable_cores()[:1]): print(flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    spinning = children(parent.pid)
    assert len(spinning) == 1
    wait_for_idle_class(spinning)  # it has begun, and knows its parent
    time.sleep(0.2)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while Path("/proc", str(spinning[0])).exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
