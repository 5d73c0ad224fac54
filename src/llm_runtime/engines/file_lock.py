"""One at a time, between processes that share a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Blocks until the lock file is ours. The kernel drops the lock with the process, so one that was
    killed blocks nobody."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
