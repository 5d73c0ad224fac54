"""Where finished log lines go: one stream, whole lines, and never a wait for whoever reads it."""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Callable
from typing import BinaryIO

# What a pipe that polls as writable takes without blocking; POSIX guarantees at least 512.
PIPE_SLICE = getattr(select, "PIPE_BUF", 512)
MAX_PENDING_BYTES = 1 << 20


class LineSink:
    """Writes whole lines to one unbuffered stream, from any thread.

    Nobody waits and nobody fails for the log's sake. A reader that stands still (a full pipe, a paused
    terminal) makes lines wait here, up to `max_pending_bytes`, until a later line finds room; what has
    no place, and what a full disk or a closed pipe refuses, is counted, and the count is told as soon
    as something can be written again.
    """

    __slots__ = ("_lock", "_max_pending_bytes", "_mid_line", "_pending", "_slice", "_stream", "_writable",
                 "num_lost")  # fmt: skip

    def __init__(self, stream: BinaryIO, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        self._stream = stream
        self._max_pending_bytes = max_pending_bytes
        self._writable, self._slice = _readiness(stream)
        # Re-entrant: a finalizer that runs inside a write may log as well.
        self._lock = threading.RLock()
        self._pending = b""
        self._mid_line = False
        self.num_lost = 0

    def write(self, line: bytes) -> None:
        """One line, without its line feed."""
        with self._lock:
            if self.num_lost and not self._pending:
                if not self._send(b'{"level":"error","event":"log.lost","lines":%d}\n' % self.num_lost):
                    self.num_lost += 1
                    return
                self.num_lost = 0
            if self._pending and len(self._pending) + len(line) > self._max_pending_bytes:
                self.num_lost += 1
                line = b""
            data = self._pending + line + b"\n" if line else self._pending
            if not self._send(data):
                self.num_lost += data.count(b"\n")

    @property
    def pending_bytes(self) -> int:
        """What waits for the reader."""
        return len(self._pending)

    def flush(self) -> None:
        """Sends what waits, as far as the reader takes it now: for the end of the process."""
        with self._lock:
            data = self._pending
            if data and not self._send(data):
                self.num_lost += data.count(b"\n")

    def _send(self, data: bytes) -> bool:
        """False if the stream refused. What only has to wait is kept as pending."""
        if self._mid_line and not self._pending:
            # The rest of the last line was refused: it ends here, torn, and the next one is whole.
            data = b"\n" + data
        self._pending = b""
        try:
            while data and self._writable():
                num_written = self._stream.write(data[: self._slice])
                if not num_written:
                    break
                self._mid_line = data[num_written - 1] != ord("\n")
                data = data[num_written:]
        except (OSError, ValueError):
            return False
        self._pending = data
        return True


def _readiness(stream: BinaryIO) -> tuple[Callable[[], bool], int | None]:
    """Whether a write would not block, and how much may be written then (None: everything).

    Files never block for a reader, and what is no file has none.
    """
    try:
        descriptor = stream.fileno()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return lambda: True, None
        poller = select.poll()
        poller.register(descriptor, select.POLLOUT)
    except (OSError, ValueError, AttributeError):
        return lambda: True, None
    return lambda: bool(poller.poll(0)), PIPE_SLICE
