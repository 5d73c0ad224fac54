"""Log lines: one JSON object each, from every source, without keys and prompts (field case F58)."""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
import structlog

from llm_runtime.core.errors import BackendCrashed, InvalidRequest
from llm_runtime.telemetry.log_exceptions import describe, message_of
from llm_runtime.telemetry.logging import StandardHandler
from tests.telemetry.builders import MARKER
from tests.telemetry.log_stream import Stream, Strict, configure, value_error

# ---- shape


def test_a_line_is_one_json_object_and_one_write(stream: Stream) -> None:
    configure(stream)
    log = structlog.get_logger("some.module")
    log.info("engine.started", replica="a", seconds=0.5, nothing=None)
    log.warning("two\nlines", text='a "quoted"\r\nlevel=ERROR forged')
    assert stream.num_writes == 2
    first, second = stream.lines
    assert first["event"] == "engine.started"
    assert first["level"] == "info"
    assert (first["replica"], first["seconds"], first["nothing"]) == ("a", 0.5, None)
    assert list(first)[:3] == ["timestamp", "level", "event"]
    assert second["event"] == "two\nlines"
    assert second["level"] == "warning"


def test_times_are_utc(stream: Stream) -> None:
    configure(stream)
    before = datetime.now(UTC)
    structlog.get_logger().info("x")
    logging.getLogger("lib").warning("y")
    for line in stream.lines:
        assert line["timestamp"].endswith("Z")
        at = datetime.fromisoformat(line["timestamp"])
        assert before.timestamp() - 0.001 <= at.timestamp() <= datetime.now(UTC).timestamp() + 0.001


@pytest.mark.parametrize(
    ("level", "expected"),
    [("debug", ["d", "i", "w", "e", "x"]), ("info", ["i", "w", "e", "x"]), ("warning", ["w", "e", "x"]),
     ("error", ["e", "x"])],
)  # fmt: skip
def test_levels(stream: Stream, level: str, expected: list[str]) -> None:
    configure(stream, level)
    log = structlog.get_logger()
    for method, name in (("debug", "d"), ("info", "i"), ("warning", "w"), ("error", "e"), ("exception", "x")):
        getattr(log, method)(name)
    assert [line["event"] for line in stream.lines] == expected
    assert stream.lines[-1]["level"] == "error"


def test_configuring_again_replaces_and_does_not_double(stream: Stream) -> None:
    other = Stream()
    configure(other)
    configure(stream)
    structlog.get_logger().info("a")
    logging.getLogger("lib").warning("b")
    assert [line["event"] for line in stream.lines] == ["a", "b"]
    assert other.lines == []


# ---- other sources


def test_the_standard_library_and_uvicorn_come_the_same_way(stream: Stream) -> None:
    uvicorn = logging.getLogger("uvicorn")
    uvicorn.addHandler(logging.StreamHandler())
    uvicorn.propagate = False
    lines = configure(stream)
    logging.getLogger("uvicorn.error").info("Application startup complete.")
    logging.getLogger("some.library").warning("retry %d of %s", 2, "x")
    mangled = logging.LogRecord("some.library", logging.INFO, "x.py", 1, "mangled %d", ("no number",), None)
    StandardHandler(lines).handle(mangled)
    assert [(line["event"], line["level"], line["logger"]) for line in stream.lines] == [
        ("Application startup complete.", "info", "uvicorn.error"),
        ("retry 2 of x", "warning", "some.library"),
        ("mangled %d", "info", "some.library"),
    ]


def test_access_lines_are_off_and_libraries_never_speak_at_debug(stream: Stream) -> None:
    configure(stream, "debug")
    logging.getLogger("uvicorn.access").info('127.0.0.1 - "GET /?api_key=abc HTTP/1.1" 200')
    logging.getLogger("httpcore").debug("send_request_body %s", MARKER)
    assert stream.lines == []


def test_warnings_are_lines_too(stream: Stream) -> None:
    configure(stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)
    assert "old thing" in stream.lines[0]["event"]
    assert stream.lines[0]["logger"] == "py.warnings"


# ---- secrets and prompts


def test_no_secret_reaches_the_stream_by_any_way(stream: Stream) -> None:
    configure(stream, "debug", secrets=["configured-key-1"])
    log = structlog.get_logger()
    log.info("a", headers={"authorization": "Bearer sk-CLIENTSECRET"}, api_key="sk-UPSTREAMSECRET")
    log.info("calling https://user:sk-UPSTREAMSECRET@host/v1?api_key=sk-CLIENTSECRET with configured-key-1")
    logging.getLogger("lib").error("401 for Bearer sk-WRONGSECRET, key %s", "configured-key-1")
    try:
        raise OSError("cannot reach https://u:sk-UPSTREAMSECRET@h with configured-key-1")
    except OSError as error:
        log.exception("b")
        log.error("c", error=error)
    assert len(stream.lines) == 5
    assert b"SECRET" not in stream.getvalue()
    assert b"configured-key-1" not in stream.getvalue()


def _validation() -> None:
    Strict.model_validate({"number": MARKER})


def _key_error() -> None:
    empty: dict[str, int] = {}
    empty[MARKER]


def _unicode() -> None:
    (MARKER + "\ud800").encode()


def _invalid_request() -> None:
    raise InvalidRequest(f"role '{MARKER}' is not allowed", param="messages[0].role")


def _chained() -> None:
    try:
        value_error()
    except ValueError as error:
        raise OSError("while reading the body") from error


def _group() -> None:
    raise ExceptionGroup(MARKER, [ValueError(MARKER), OSError("disk is full")])


@pytest.mark.parametrize(
    "crash", [_validation, _key_error, _unicode, value_error, _invalid_request, _chained, _group]
)
def test_a_crash_tells_where_and_what_but_no_prompt(stream: Stream, crash: Callable[[], None]) -> None:
    configure(stream)
    try:
        crash()
    except Exception:
        structlog.get_logger().exception("handler.crashed", request_id="r1")
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
    assert len(stream.lines) == 2
    for line in stream.lines:
        assert MARKER not in json.dumps(line)
        assert f"{crash.__name__}" in line["exception"]
        assert "test_logging.py:" in line["exception"]


def test_causes_and_members_of_groups_are_told() -> None:
    try:
        _chained()
    except OSError as error:
        text = describe(error)
    assert text.splitlines()[-1] == "OSError: while reading the body"
    assert text.index("ValueError") < text.index("then:") < text.index("OSError")
    try:
        _group()
    except ExceptionGroup as error:
        text = describe(error)
    assert "  | ValueError" in text.splitlines()
    assert "  | OSError: disk is full" in text.splitlines()


def test_a_traceback_has_a_bounded_size() -> None:
    def deep(number: int) -> None:
        if number == 0:
            raise OSError("x" * 100_000)
        deep(number - 1)

    try:
        deep(500)
    except OSError as error:
        text = describe(error)
    assert len(text) < 20_000
    assert "outer frames" in text


def test_a_cycle_of_causes_ends() -> None:
    first, second = OSError("a"), OSError("b")
    first.__cause__, second.__cause__ = second, first
    assert describe(first).count("OSError") == 2


def test_which_exceptions_may_speak() -> None:
    assert message_of(OSError(28, "No space left on device")) == "OSError: [Errno 28] No space left on device"
    assert message_of(BackendCrashed("The engine died.")) == "BackendCrashed: The engine died."
    assert message_of(InvalidRequest("about the prompt", param="n")) == "InvalidRequest: invalid_request (n)"
    assert message_of(ValueError("about the prompt")) == "ValueError"
    assert message_of(RuntimeError("two\nlines")) == "RuntimeError: two lines"


async def test_asyncio_does_not_print_the_exception_of_a_lost_task(stream: Stream) -> None:
    configure(stream)
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[None] = loop.create_future()
    lost.set_exception(ValueError(MARKER))
    loop.call_exception_handler(
        {"message": "Task exception was never retrieved", "exception": lost.exception(), "future": lost}
    )
    (line,) = stream.lines
    assert line["event"] == "Task exception was never retrieved"
    assert MARKER not in json.dumps(line)
