"""Replies as they stand on the wire: lines of heads, some made once and some to be looked at, and chunks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from llm_runtime.web.errors import Header

_NOT_IN_HEADERS: Final = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_NUM_SIZES: Final = 2048
_SIZES: Final = [b"%x\r\n" % num_bytes for num_bytes in range(_NUM_SIZES)]
"""The first line of a chunk, for all that a token may need."""


def checked(lines: list[bytes]) -> bytes:
    """The lines, each with its end. Raises RuntimeError for one that is two, or what no header can be."""
    text = b"\n".join(lines)
    if _NOT_IN_HEADERS.search(text) or text.count(b"\n") != max(len(lines) - 1, 0):
        raise RuntimeError("Invalid HTTP header.")
    return text.replace(b"\n", b"\r\n") + b"\r\n" if lines else b""


def lines_of(headers: Iterable[Header]) -> bytes:
    """Headers whose names are in lower case, as lines. Who calls vouches for what is in them."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def pairs_of(lines: bytes) -> list[Header]:
    """What `lines_of` was given."""
    pairs: list[Header] = []
    for line in lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        pairs.append((name, value))
    return pairs


class FixedLines:
    """The lines of what a server puts into every head, made anew when that is another list: uvicorn's is one
    for a second, because of its date.

    frames: whether it speaks of the body or of the connection, which then takes more than these lines.
    """

    __slots__ = ("_of", "frames", "lines")

    def __init__(self) -> None:
        self._of: list[Header] | None = None
        self.frames = False
        self.lines = b""

    def update(self, headers: list[Header]) -> None:
        """Raises RuntimeError for what no header can be."""
        if headers is self._of:
            return
        lines: list[bytes] = []
        frames = False
        for given, value in headers:
            name = given.lower()
            lines.append(b"%b: %b" % (name, value))
            frames |= name in (b"content-length", b"transfer-encoding", b"connection")
        self.lines = checked(lines)
        self.frames = frames
        self._of = headers


def as_chunk(data: bytes) -> bytes:
    """Not for nothing at all, which would be the last one."""
    num_bytes = len(data)
    if num_bytes < _NUM_SIZES:
        return b"%b%b\r\n" % (_SIZES[num_bytes], data)
    return b"%x\r\n%b\r\n" % (num_bytes, data)
