from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.overhead import procs
from benchmarks.overhead.procs import Stat

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"
LIVING = BURN.format(seconds=0.25) + "print('done', flush=True)\ninput()\n"
FAMILY = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {BURN.format(seconds=0.3)!r}], check=True)
{BURN.format(seconds=0.2)}
living = subprocess.Popen([sys.executable, "-c", {LIVING!r}], stdin=subprocess.PIPE, start_new_session=True)
sys.stdin.read()
living.communicate(b"\\n")
"""


def test_stat_of_a_process_with_an_awkward_name() -> None:
    fields = ["S", "41", "40", "39", "0", "-1", "0", "1", "2", "3", "4", "100", "50", "7", "3", "20"]
    stat = procs.parse_stat(f"42 (a) b) {' '.join(fields)}\n")
    assert (stat.pid, stat.parent, stat.session) == (42, 41, 39)
    assert stat.ticks_s == pytest.approx(150 * procs.TICK_S)
    assert stat.children_s == pytest.approx(10 * procs.TICK_S)


def test_tree_has_descendants_and_whoever_shares_the_session() -> None:
    def stat(pid: int, parent: int, session: int) -> Stat:
        return Stat(pid, parent, session, 0.0, 0.0)

    stats = [
        stat(10, 1, 10),
        stat(11, 10, 10),
        stat(12, 11, 12),  # a session of its own, but a descendant
        stat(13, 1, 10),  # its parent is gone, but its session is known
        stat(14, 13, 14),
        stat(20, 1, 20),
    ]
    assert sorted(found.pid for found in procs.tree(10, stats)) == [10, 11, 12, 13, 14]


def test_busy_time_is_everything_but_idle_and_waiting() -> None:
    line = "cpu  100 20 30 1000 500 5 6 7 50 60\n"  # guest time is within user time already
    assert procs.parse_busy(line) == pytest.approx((100 + 20 + 30 + 5 + 6 + 7) * procs.TICK_S)


def test_cpu_of_a_family_counts_ended_and_living_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        used_s = procs.cpu_s(process.pid)
        memory = procs.memory(process.pid)
        process.stdin.close()
        process.wait()
    assert 0.7 <= used_s < 3.0  # whose ended child was counted in ticks
    assert memory.num_processes == 2
    assert memory.peak >= memory.resident > 5_000_000


def test_an_ended_tree_costs_nothing_more() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert procs.cpu_s(process.pid) == 0
    assert procs.cpu_s(os.getpid()) > 0
