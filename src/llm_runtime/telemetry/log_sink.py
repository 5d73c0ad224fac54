"""Where finished log lines go: one stream, whole lines, and never a wait for whoever reads it.

Lines that come for every request go out at once while they are few; of more than one within GATHER_S the
later ones go together, since a write of its own would cost a request more than its line.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import threading
import time
from collections.abc import Callable
from typing import BinaryIO, Final

# What a pipe that polls as writable takes without blocking; POSIX guarantees at least 512.
PIPE_SLICE = getattr(select, "PIPE_BUF", 512)
MAX_PENDING_BYTES = 1 << 20
GATHER_S: Final = 0.05
"""How late a line may be; a process that is killed takes along what it gathered."""
MAX_GATHERED: Final = 64

_monotonic: Final = time.monotonic


class LineSink:
    """Writes whole lines to one unbuffered stream, from any thread.

    Nobody waits and nobody fails for the log's sake. A reader that stands still (a full pipe, a paused
    terminal) makes lines wait here, up to `max_pending_bytes`, until a later line finds room; what has
    no place, and what a full disk or a closed pipe refuses, is counted, and the count is told as soon
    as something can be written again.
    """

    __slots__ = ("_due_at", "_gathered", "_lock", "_max_pending_bytes", "_mid_line", "_pending", "_slice",
                 "_stream", "_writable", "_written_at", "num_lost")  # fmt: skip

    def __init__(self, stream: BinaryIO, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        self._stream = stream
        self._max_pending_bytes = max_pending_bytes
        self._writable, self._slice = _readiness(stream)
        # Re-entrant: a finalizer that runs inside a write may log as well.
        self._lock = threading.RLock()
        self._pending = b""
        self._mid_line = False
        self._gathered: list[bytes] = []
        self._due_at: float | None = None
        self._written_at = 0.0
        self.num_lost = 0

    def write(self, line: bytes) -> None:
        """One line, without its line feed, after those that were gathered."""
        with self._lock:
            if self._gathered:
                line = b"\n".join([*self._gathered, line])
                self._gathered.clear()
            self._put(line)

    def gather(self, line: bytes) -> None:
        """The same, within GATHER_S, of a thread whose loop runs; at once from elsewhere."""
        with self._lock:
            now = _monotonic()
            if self._due_at is None and now - self._written_at >= GATHER_S and not self._gathered:
                self._written_at = now
                self._put(line)
                return
            # A loop that has ended since will not call any more.
            is_late = self._due_at is not None and now >= self._due_at + GATHER_S
            if is_late or len(self._gathered) >= MAX_GATHERED:
                if is_late:
                    self._due_at = None
                self.write(line)
                return
            self._gathered.append(line)
            if self._due_at is None:
                self._call_later(now)

    def _call_later(self, now: float) -> None:
        try:
            asyncio.get_running_loop().call_later(GATHER_S, self._due)
        except RuntimeError:  # none runs here
            self._put_gathered()
        else:
            self._due_at = now + GATHER_S

    def _due(self) -> None:
        with self._lock:
            self._due_at = None
            self._written_at = _monotonic()
            self._put_gathered()

    def _put_gathered(self) -> None:
        if self._gathered:
            lines = b"\n".join(self._gathered)
            self._gathered.clear()
            self._put(lines)

    def _put(self, lines: bytes) -> None:
        """Some lines, with a line feed between them."""
        with self._lock:
            if self.num_lost and not self._pending:
                if not self._send(b'{"level":"error","event":"log.lost","lines":%d}\n' % self.num_lost):
                    self.num_lost += 1 + lines.count(b"\n")
                    return
                self.num_lost = 0
            if self._pending and len(self._pending) + len(lines) > self._max_pending_bytes:
                self.num_lost += 1 + lines.count(b"\n")
                lines = b""
            data = self._pending + lines + b"\n" if lines else self._pending
            if not self._send(data):
                self.num_lost += data.count(b"\n")

    @property
    def pending_bytes(self) -> int:
        """What waits for the reader."""
        return len(self._pending)

    def flush(self) -> None:
        """Sends what waits, as far as the reader takes it now: for the end of the process."""
        with self._lock:
            self._put_gathered()
            data = self._pending
            if data and not self._send(data):
                self.num_lost += data.count(b"\n")

    def _first_of(self, data: bytes) -> bytes:
        """What goes in one write: whole lines where they fit, so that no other writer gets into one."""
        limit = self._slice
        if limit is None or len(data) <= limit:
            return data
        return data[: data.rfind(b"\n", 0, limit) + 1 or limit]

    def _send(self, data: bytes) -> bool:
        """False if the stream refused. What only has to wait is kept as pending."""
        if self._mid_line and not self._pending:
            # The rest of the last line was refused: it ends here, torn, and the next one is whole.
            data = b"\n" + data
        self._pending = b""
        try:
            while data and self._writable():
                num_written = self._stream.write(self._first_of(data))
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
