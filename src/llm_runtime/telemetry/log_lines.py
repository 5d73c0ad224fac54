"""From an event to a finished line and on to the stream: the part of logging that every request passes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import PurePath
from typing import Any, Final

import orjson
import structlog

from llm_runtime.telemetry.digits import PADDED
from llm_runtime.telemetry.log_exceptions import message_of
from llm_runtime.telemetry.log_sink import LineSink
from llm_runtime.telemetry.redact import Redactor
from llm_runtime.telemetry.snapshot import finite

Event = MutableMapping[str, Any]
Renderer = Callable[[Event, bool], bytes]

_now_ns: Final = time.time_ns
_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_UTC_Z
# In UTF-8: what JSON may hold as it is, but terminals obey or line readers split at.
_C1_OR_SEPARATOR: Final = re.compile(rb"\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")
_LEVELS: Final = {"warn": "warning", "fatal": "critical", "exception": "error"}


class LineLog:
    """The one way to the log stream, for structlog, the standard library and `LogEvents` alike.

    makes_json: lines are JSON objects, so that one may be put as its maker has written it.
    """

    __slots__ = ("_render", "_second", "_sink", "level", "makes_json")

    def __init__(self, render: Renderer, sink: LineSink, level: int) -> None:
        self._render = render
        self._sink = sink
        self._second = (-1, "")
        self.level = level
        self.makes_json = isinstance(render, JsonLines)

    def write(
        self,
        level: str,
        event: object,
        fields: Mapping[str, Any],
        *,
        vetted: bool = False,
        at: float | None = None,
    ) -> None:
        """One line, of any level. vetted: no field can hold a key, so there is no looking for one."""
        stamp = self.stamp() if at is None else _utc(datetime.fromtimestamp(at, UTC))
        stamped = {"timestamp": stamp, "level": level, "event": event, **fields}
        self._sink.write(self._render(stamped, vetted))

    def put(self, line: bytes) -> None:
        """One line that is finished, vetted, and byte for byte what `write` would have made of it; under load
        it waits a moment for others (`LineSink.gather`)."""
        self._sink.gather(line)

    def stamp(self) -> str:
        """Now, as lines tell it. From any thread."""
        now_us = _now_ns() // 1000
        second, micros = now_us // 1_000_000, now_us % 1_000_000
        known, text = self._second
        if known != second:
            text = _utc(datetime.fromtimestamp(second, UTC))[:-7]
            self._second = (second, text)
        return f"{text}{PADDED[micros // 1000]}{PADDED[micros % 1000]}Z"

    def flush(self) -> None:
        """Sends what still waits for the reader, as far as it takes it now."""
        self._sink.flush()

    def take(self, _: Any, method: str, event: Event) -> Event:
        """structlog's last processor."""
        self.write(_LEVELS.get(method, method), event.pop("event"), event)
        raise structlog.DropEvent


class JsonLines:
    """Renders an event as one JSON object. Total: whatever an event holds, a line comes out."""

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact

    def __call__(self, event: Event, vetted: bool) -> bytes:
        line = as_json(event) if vetted else self._redact(as_json(event))
        return one_line(line)


def one_line(line: bytes) -> bytes:
    """The same JSON, with nothing in it that ends a line or that a terminal obeys."""
    return line if line.isascii() else _C1_OR_SEPARATOR.sub(_escape, line)


def _escape(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(match[0].decode())


def as_json(event: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(event, default=_plain, option=_OPTIONS)
    except TypeError:
        # Lone surrogates, integers beyond 64 bits, depth: rare, so exactness may cost something.
        return json.dumps(_tame(event, 0), ensure_ascii=True, allow_nan=False).encode()


def _tame(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _tame(v, depth + 1) for k, v in value.items()} if depth < 20 else "<deep>"
    if isinstance(value, (list, tuple)):
        return [_tame(item, depth + 1) for item in value] if depth < 20 else "<deep>"
    if isinstance(value, (str, int, float, bool)) or value is None:
        return finite(value)
    return _plain(value)


def _plain(value: Any) -> Any:
    """What stands for an object in a log. Its repr could hold a request, so only harmless kinds speak."""
    if isinstance(value, BaseException):
        return message_of(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    return f"<{type(value).__name__}>"


def _utc(when: datetime) -> str:
    return when.isoformat(timespec="microseconds")[:-6] + "Z"
