"""What an engine prints: cut into lines, the last ones kept, the rest passed on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal

Stream = Literal["stdout", "stderr"]
LineSink = Callable[[Stream, str], None]

MAX_LINES = 40  # per stream
MAX_LINE_BYTES = 4096


class OutputLines:
    """Owned by one `EngineProcess`; memory is bounded whatever the engine prints."""

    def __init__(self, on_line: LineSink | None = None) -> None:
        self._on_line = on_line
        self._rest: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}
        self._last: dict[Stream, deque[str]] = {
            "stdout": deque(maxlen=MAX_LINES),
            "stderr": deque(maxlen=MAX_LINES),
        }
        self._awaited: list[tuple[str, asyncio.Future[str]]] = []

    def feed(self, stream: Stream, data: bytes) -> None:
        """Takes bytes as they come; a line longer than MAX_LINE_BYTES is cut there."""
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        for line in lines:
            self._take(stream, line)
        while len(rest) > MAX_LINE_BYTES:
            self._take(stream, rest[:MAX_LINE_BYTES])
            rest = rest[MAX_LINE_BYTES:]
        self._rest[stream] = rest

    def close(self) -> None:
        """No more will come: an unfinished last line counts as one."""
        for stream, rest in self._rest.items():
            if rest:
                self._take(stream, rest)
        self._rest = {"stdout": b"", "stderr": b""}

    def last(self) -> tuple[str, ...]:
        """The last lines, those of stderr at the end: they tell most."""
        return (*self._last["stdout"], *self._last["stderr"])

    async def line_with_prefix(self, prefix: str) -> str:
        """The first line of stdout, among those kept and those to come, that begins with prefix."""
        for line in self._last["stdout"]:
            if line.startswith(prefix):
                return line
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._awaited.append((prefix, found))
        try:
            return await found
        finally:
            self._awaited.remove((prefix, found))

    def _take(self, stream: Stream, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r")
        self._last[stream].append(text)
        if stream == "stdout":
            for prefix, found in self._awaited:
                if text.startswith(prefix) and not found.done():
                    found.set_result(text)
        if self._on_line is not None:
            self._on_line(stream, text)
