"""Processes that a library started for us go when we do, however we go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llm_runtime.engines import leftovers
from llm_runtime.engines.orphan_watch import OrphanWatch
from tests.engines.processes import cleaned_up, linux_only, wait_ended

pytestmark = linux_only

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"

OWNER = f"""
import json, os, subprocess, sys, time
from pathlib import Path
from llm_runtime.engines.orphan_watch import OrphanWatch
watch = OrphanWatch(Path(sys.argv[1]), "library")
marked = [
    subprocess.Popen(
        [sys.executable, "-c", {SLEEPER!r}], env={{**os.environ, **watch.environment}}, start_new_session=True
    ).pid
    for _ in range(2)
]
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
print(json.dumps([watch._process.pid, other, *marked]), flush=True)
time.sleep(600)
"""


def start_marked(watch: OrphanWatch) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SLEEPER], env={**os.environ, **watch.environment})


def test_closing_ends_what_has_the_mark_and_removes_the_note(tmp_path: Path) -> None:
    watch = OrphanWatch(tmp_path, "library")
    with start_marked(watch) as marked, subprocess.Popen([sys.executable, "-c", SLEEPER]) as other:
        assert len(os.listdir(tmp_path)) == 1
        watch.close()
        assert marked.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
    assert os.listdir(tmp_path) == []


def test_a_named_process_ends_with_all_below_it_though_it_lost_its_mark(tmp_path: Path) -> None:
    watch = OrphanWatch(tmp_path, "library")
    start = f"subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])"
    family = f"import subprocess, sys; print({start}.pid, flush=True); {SLEEPER}"
    with subprocess.Popen([sys.executable, "-c", family], stdout=subprocess.PIPE, text=True) as named:
        assert named.stdout is not None
        below = int(named.stdout.readline())
        with cleaned_up([below, named.pid]):
            watch.add(named.pid)
            watch.close()
            assert named.wait(10) == -signal.SIGKILL
            assert wait_ended([below], 10) == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("watch_dies_too", [False, True])
def test_what_has_the_mark_ends_with_its_killed_owner(tmp_path: Path, watch_dies_too: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        watch, other, *marked = json.loads(owner.stdout.readline())
        with cleaned_up([watch, other, *marked]):
            if watch_dies_too:
                os.kill(watch, signal.SIGKILL)
                assert wait_ended([watch], 10) == []
            os.kill(owner.pid, signal.SIGKILL)
            owner.wait()
            if watch_dies_too:
                assert wait_ended(marked, 0) == marked
                (found,) = leftovers.remove_leftovers(str(tmp_path))
                assert set(found.killed) == set(marked)
            assert wait_ended([watch, *marked], 10) == []
            assert wait_ended([other], 0) == [other], "only what has the mark"
    assert os.listdir(tmp_path) == []
