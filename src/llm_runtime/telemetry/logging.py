"""Logs: one JSON object per line, or lines for people on a terminal. Never a key, never a prompt.

Ours come through structlog, those of libraries and uvicorn through the standard logging module; both
end in the same rendering and the same stream, so lines never interleave and look alike.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable
from typing import Any, BinaryIO

import structlog

from llm_runtime.telemetry.config import TelemetryConfig
from llm_runtime.telemetry.log_exceptions import describe
from llm_runtime.telemetry.log_lines import Event, JsonLines, LineLog, as_json
from llm_runtime.telemetry.log_sink import LineSink
from llm_runtime.telemetry.redact import Redactor

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def configure_logging(
    config: TelemetryConfig, *, secrets: Iterable[str] = (), stream: BinaryIO | None = None
) -> LineLog:
    """Sets up structlog and the standard logging module for the process; a later call replaces it.

    secrets: values that must not appear in any line. stream: binary and unbuffered; default stderr.
    """
    if stream is None:
        stream = open(2, "wb", buffering=0, closefd=False)  # noqa: SIM115 - lives as long as the process
    console = config.log_format == "console" or (config.log_format == "auto" and stream.isatty())
    redact = Redactor(secrets)
    lines = LineLog(
        ConsoleLines(redact, colors=stream.isatty()) if console else JsonLines(redact),
        LineSink(stream),
        logging.getLevelNamesMapping()[config.log_level.upper()],
    )
    structlog.configure(
        processors=[_explain, lines.take],
        wrapper_class=structlog.make_filtering_bound_logger(lines.level),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    _route_standard_logging(lines)
    return lines


class ConsoleLines:
    """Renders an event for people. Control characters are shown, not obeyed; tracebacks keep lines."""

    def __init__(self, redact: Redactor, *, colors: bool) -> None:
        self._redact = redact
        self._console = structlog.dev.ConsoleRenderer(colors=colors, sort_keys=False)

    def __call__(self, event: Event, vetted: bool) -> bytes:
        plain: dict[str, Any] = json.loads(self._redact(as_json(event)))
        exception = plain.pop("exception", None)
        shown = {_visible(key): _visible(value) for key, value in plain.items()}
        if exception is not None:
            shown["exception"] = "\n".join(map(_visible, str(exception).splitlines()))
        line = self._console(None, "", shown)
        return str(line).encode("utf-8", "replace")


def _visible(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], value)


# ---- structlog's part


def _explain(_: Any, __: str, event: Event) -> Event:
    """Replaces `exc_info`, in any of the forms it is given, by a description without data."""
    info = event.pop("exc_info", None)
    error: Any = info
    if isinstance(info, tuple):
        error = info[1]
    elif info and not isinstance(info, BaseException):
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        event["exception"] = describe(error)
    return event


# ---- the standard library's part


class StandardHandler(logging.Handler):
    """Takes records of libraries into our lines."""

    def __init__(self, lines: LineLog) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = describe(record.exc_info[1])
        self._lines.write(record.levelname.lower(), _text_of(record), fields, at=record.created)

    def flush(self) -> None:
        """Called by the logging module at the end of the process."""
        self._lines.flush()


def _text_of(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:
        # A library's mistake between message and arguments, which must not become ours.
        return record.msg if isinstance(record.msg, str) else f"<{type(record.msg).__name__}>"
    # asyncio appends the repr of a task, and with it the text of its exception.
    return text.partition("\n")[0] if record.name == "asyncio" else text


def _route_standard_logging(lines: LineLog) -> None:
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, StandardHandler)]:
        root.removeHandler(handler)
    root.addHandler(StandardHandler(lines))
    # Libraries at debug level tell whole requests; nobody who debugs this server wants those.
    root.setLevel(max(lines.level, logging.INFO))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    # Each request has its own line already, without the query string.
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    logging.captureWarnings(True)
