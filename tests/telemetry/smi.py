"""An nvidia-smi that works, and a sampler that only asks it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from llm_runtime.telemetry.gpu import NvidiaSmiSampler
from llm_runtime.telemetry.gpu_readers import NvidiaSmiReader

NORMAL = (
    "0, GPU-aa, NVIDIA H200, 1024, 143771, 73, 40, 210.55\n1, GPU-bb, NVIDIA H200, 0, 143771, 0, 31, 75.10\n"
)


def smi(timeout_s: float = 5.0) -> NvidiaSmiSampler:
    return NvidiaSmiSampler(1.0, [NvidiaSmiReader(timeout_s=timeout_s)])


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Dead, or a zombie that only init has yet to reap; a signal takes effect when the kernel gets to it."""
    deadline = time.monotonic() + within_s
    while not _is_gone(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGCONT)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True
