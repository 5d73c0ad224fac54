"""Watching processes from tests: by the kernel's word, not by sleeping."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_runtime.engines import proctable

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, prctl and pidfds")

PROGRAMS = Path(__file__).parent / "programs"


def program(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / f"{name}.py"), *arguments)


def wait_ended(pids: list[int], timeout_s: float) -> list[int]:
    """Those that still run after timeout_s; returns as soon as none does. Zombies have ended."""
    deadline = time.monotonic() + timeout_s
    left = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            finally:
                os.close(descriptor)
        if proctable.is_running(pid):
            left.append(pid)
    return left


@contextlib.contextmanager
def cleaned_up(pids: list[int]) -> Iterator[None]:
    """Whatever a failing test leaves is removed: only pids the test itself was told."""
    try:
        yield
    finally:
        for pid in pids:
            proctable.send(pid, signal.SIGKILL)
