"""How many threads an engine on this machine's processor computes with, where nobody says."""

from __future__ import annotations

import os


def default_threads() -> int:
    """One core stays free for the gateway: a thread that waits for a busy one costs the engine most
    (docs/benchmarks.md has the comparison)."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable - 1)
