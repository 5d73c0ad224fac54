"""Server-sent events as bytes: cut a stream into events, read the data of one.

Bytes are only cut at line ends, so a character split over two reads is whole again when its event is.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import orjson

from llm_runtime.core.errors import BackendProtocolError, NotAnEventStream

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024

_LF: Final = 0x0A
_CR: Final = 0x0D
"""As numbers: `in` looks for those directly, while a byte string is first tried as a number and refused."""

_loads: Final = orjson.loads
_NoJson: Final = orjson.JSONDecodeError
_is_ascii: Final = bytes.isascii


class SseSplitter:
    """Cuts one stream into events, however the reads fall. Owned by whoever reads that stream.

    Accepts LF, CR LF and CR as line ends, in any mix.
    """

    __slots__ = ("_max_event_bytes", "_scanned", "_skip_lf", "tail")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.tail = b""
        """The beginning of an event whose end has not come yet."""
        self._max_event_bytes = max_event_bytes
        self._scanned = 0
        self._skip_lf = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes, each ending with exactly one blank line (LF LF).

        Raises BackendProtocolError when an event exceeds the limit.
        """
        if self._skip_lf or _CR in data:
            data = self._unify_line_ends(data)
        if not data:
            return []
        if not self.tail:
            return self._whole(data)
        data = self.tail + data
        events: list[bytes] = []
        start = 0
        # The tail holds no event end, but its last byte may be the first half of one.
        end = data.find(b"\n\n", self._scanned)
        while end >= 0:
            if end > start:
                events.append(data[start : end + 2].lstrip(b"\n"))
            start = end + 2
            end = data.find(b"\n\n", start)
        self._keep(data[start:].lstrip(b"\n") if start else data)
        return events

    def _whole(self, data: bytes) -> list[bytes]:
        """The same where nothing was left: one call finds all ends."""
        pieces = data.split(b"\n\n")
        last = pieces.pop()
        if last:
            self._keep(last.lstrip(b"\n") if pieces else last)
        elif len(pieces) == 1 and data[0] != _LF:
            return [data]
        events: list[bytes] = []
        for piece in pieces:
            if piece:
                events.append((piece.lstrip(b"\n") if piece[0] == _LF else piece) + b"\n\n")
        return events

    def _keep(self, tail: bytes) -> None:
        self.tail = tail
        self._scanned = max(0, len(tail) - 1)
        if len(tail) > self._max_event_bytes:
            raise BackendProtocolError("The engine sent an event that is too long.")

    def flush(self) -> bytes:
        """What was left without its blank line when the stream ended, framed as an event; or b""."""
        tail, self.tail, self._scanned = self.tail.strip(b"\n"), b"", 0
        return tail + b"\n\n" if tail else b""

    def _unify_line_ends(self, data: bytes) -> bytes:
        if self._skip_lf and data:
            if data[0] == 0x0A:
                data = data[1:]
            self._skip_lf = False
        if _CR in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data


def is_single_line(event: bytes) -> bool:
    """Whether an event that ends with one blank line is a single line of data."""
    return event.startswith(b"data:") and _LF not in event[5:-2]


def event_data(event: bytes) -> bytes | None:
    """The joined `data` lines of an event that ends with a blank line; None if it has none."""
    if is_single_line(event):
        return event[6:-2] if event[5] == 0x20 else event[5:-2]
    lines = [
        line[6:] if line.startswith(b"data: ") else line[5:]
        for line in event.split(b"\n")
        if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None


def is_utf8(data: bytes) -> bool:
    if _is_ascii(data):
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class Mark(Enum):
    """What an event can be besides an object: the stream's end marker."""

    END = "[DONE]"


END: Final = Mark.END


def read_event(event: bytes) -> dict[str, Any] | Mark | None:
    """What an OpenAI-like event says; None for comments, `null` and events without data.

    Bytes that are not UTF-8 become U+FFFD: one bad character is not worth a whole answer.
    Raises BackendProtocolError for what is no JSON object or no event stream at all.
    """
    data = event_data(event)
    if data is None:
        if event.startswith((b"<", b"{", b"[")):
            raise NotAnEventStream("The engine's answer is no event stream.")
        # Old llama.cpp: the field is named `error`.
        return {"error": _parse(event[6:]) or "unknown"} if event.startswith(b"error:") else None
    return END if data == b"[DONE]" else _parse(data)


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        parsed = _loads(data)
    except _NoJson:
        parsed = _parse_mended(data)
    if parsed is not None and not isinstance(parsed, dict):
        raise BackendProtocolError("The engine sent an event that is no object.")
    return parsed


def _parse_mended(data: bytes) -> Any:
    """What is not UTF-8 is no JSON either: the parser has refused it."""
    if not is_utf8(data):
        try:
            return _loads(data.decode(errors="replace"))
        except _NoJson:
            pass
    raise BackendProtocolError("The engine sent an event that is not JSON.")
