"""What is done to the process once the server is ready."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from llm_runtime.serving import GC_THRESHOLDS, settle_heap

kept = [object() for _ in range(3)]
cycle = []
cycle.append(cycle)
settle_heap()
assert gc.get_freeze_count() > 1000
assert gc.get_threshold() == GC_THRESHOLDS
del cycle
assert gc.collect() == 0  # what was there is set aside
later = []
later.append(later)
del later
assert gc.collect() == 1  # what came later is looked at
"""


def test_the_collector_leaves_alone_what_start_up_made() -> None:
    """In a process of its own: there is no way back from it."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
