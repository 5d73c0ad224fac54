"""Log lines: one JSON object each, from every source, without keys and prompts (field case F58)."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from llm_runtime.core.errors import BackendCrashed, InvalidRequest, RateLimited
from llm_runtime.core.events import NullEvents
from llm_runtime.core.outcome import Outcome, Usage
from llm_runtime.telemetry.config import TelemetryConfig
from llm_runtime.telemetry.log_events import FanOutEvents, LogEvents
from llm_runtime.telemetry.log_exceptions import describe, message_of
from llm_runtime.telemetry.logging import LineLog, StandardHandler, configure_logging
from llm_runtime.telemetry.metrics import MetricsCollector
from tests.telemetry.builders import MARKER, record, request, timeline


class Stream(io.BytesIO):
    """An unbuffered stream that counts writes and may be a terminal."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self.terminal = terminal
        self.num_writes = 0

    def isatty(self) -> bool:
        return self.terminal

    def write(self, data: Any) -> int:
        self.num_writes += 1
        return super().write(data)

    @property
    def lines(self) -> list[dict[str, Any]]:
        text = self.getvalue().decode()
        assert not text or text.endswith("\n")
        lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        assert all(isinstance(line, dict) for line in lines)
        return lines


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    names = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
    before = {
        name: (logger.level, logger.propagate, list(logger.handlers))
        for name in names
        if (logger := logging.getLogger(name))
    }
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    for handler in list(root.handlers):
        if isinstance(handler, StandardHandler):
            root.removeHandler(handler)
    root.setLevel(level)
    for name, (old_level, propagate, handlers) in before.items():
        logger = logging.getLogger(name)
        logger.setLevel(old_level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


@pytest.fixture
def stream() -> Stream:
    return Stream()


def configure(stream: Stream, level: Any = "info", fmt: Any = "json", **more: Any) -> LineLog:
    return configure_logging(TelemetryConfig(log_level=level, log_format=fmt), stream=stream, **more)


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


class Strict(BaseModel):
    number: int


def _validation() -> None:
    Strict.model_validate({"number": MARKER})


def _key_error() -> None:
    empty: dict[str, int] = {}
    empty[MARKER]


def _unicode() -> None:
    (MARKER + "\ud800").encode()


def _value_error() -> None:
    raise ValueError(f"cannot parse {MARKER}")


def _invalid_request() -> None:
    raise InvalidRequest(f"role '{MARKER}' is not allowed", param="messages[0].role")


def _chained() -> None:
    try:
        _value_error()
    except ValueError as error:
        raise OSError("while reading the body") from error


def _group() -> None:
    raise ExceptionGroup(MARKER, [ValueError(MARKER), OSError("disk is full")])


@pytest.mark.parametrize(
    "crash", [_validation, _key_error, _unicode, _value_error, _invalid_request, _chained, _group]
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


# ---- values of every kind


@dataclass
class Body:
    prompt: str = MARKER


class Colour(Enum):
    RED = 1


def test_objects_do_not_spill_what_they_hold(stream: Stream) -> None:
    configure(stream)
    log = structlog.get_logger()
    log.info(
        "x", request=request(), body=Body(), model=Strict(number=1), path=Path("/a/b"), colour=Colour.RED
    )
    (line,) = stream.lines
    assert MARKER not in json.dumps(line)
    assert line["request"] == "<RuntimeRequest>"
    assert line["body"] == "<Body>"
    assert line["path"] == "/a/b"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(float("nan"), None), (float("inf"), None), (2**70, 2**70), ("lone \ud800", "lone \ud800"),
     ({1, 2}, ["1", "2"]), ({1: "a"}, {"1": "a"}), (b"bytes", "<bytes>"), (object(), "<object>"),
     ((1, 2), [1, 2])],
)  # fmt: skip
def test_a_line_comes_out_whatever_the_value(stream: Stream, value: Any, shown: Any) -> None:
    configure(stream)
    structlog.get_logger().info("x", value=value)
    structlog.get_logger().info("y", value=[value, "\ud800"])
    assert stream.lines[0]["value"] == shown
    assert stream.lines[1]["value"] == [shown, "\ud800"]


def test_endless_nesting_ends(stream: Stream) -> None:
    configure(stream)
    loop: list[Any] = []
    loop.append(loop)
    structlog.get_logger().info("x", value=loop)
    assert len(stream.lines) == 1


ANYTHING = st.text() | st.floats() | st.binary() | st.integers() | st.text(st.characters(codec=None))


@given(fields=st.dictionaries(st.text(max_size=8), ANYTHING, max_size=4), vetted=st.booleans())
def test_any_fields_make_one_line(fields: dict[str, Any], vetted: bool) -> None:
    for fmt in ("json", "console"):
        stream = Stream()
        lines = configure(stream, fmt=fmt)
        lines.write("info", "x", fields, vetted=vetted)
        assert len(stream.getvalue().decode().splitlines()) == 1
        if fmt == "json":
            assert stream.lines[0]["event"] == fields.get("event", "x")


@pytest.mark.parametrize("form", ["true", "exception", "tuple"])
def test_every_form_of_exc_info_is_described(stream: Stream, form: str) -> None:
    configure(stream)
    try:
        raise OSError("disk")
    except OSError as error:
        info = {"true": True, "exception": error, "tuple": (type(error), error, error.__traceback__)}[form]
        structlog.get_logger().error("x", exc_info=info)
    structlog.get_logger().error("y", exc_info=None)
    structlog.get_logger().error("z", exc_info=True)
    assert stream.lines[0]["exception"].endswith("OSError: disk")
    assert "exception" not in stream.lines[1]
    assert "exception" not in stream.lines[2]
    assert not [line for line in stream.lines if "exc_info" in line]


# ---- the console


def test_a_terminal_gets_lines_for_people_and_a_file_gets_json() -> None:
    for terminal in (True, False):
        stream = Stream(terminal=terminal)
        configure(stream, fmt="auto")
        structlog.get_logger().info("engine.started", replica="a")
        text = stream.getvalue().decode()
        assert text.startswith("{") is not terminal
        assert "engine.started" in text


def test_the_console_hides_keys_and_shows_control_characters() -> None:
    stream = Stream()
    configure(stream, fmt="console", secrets=["configured-key-1"])
    log = structlog.get_logger()
    log.info("forged\n2026 [error] forged", api_key="sk-CLIENTSECRET", other="\x1b[31mred configured-key-1")
    text = stream.getvalue().decode()
    assert text.count("\n") == 1
    assert "SECRET" not in text
    assert "configured-key-1" not in text
    assert "\x1b[31m" not in text
    assert "\\x1b[31mred" in text


def test_the_console_shows_tracebacks_in_lines_without_locals() -> None:
    stream = Stream()
    configure(stream, fmt="console")
    try:
        _value_error()
    except ValueError:
        structlog.get_logger().exception("crashed")
    text = stream.getvalue().decode()
    assert MARKER not in text.replace('f"cannot parse {MARKER}"', "")
    assert len(text.splitlines()) >= 3
    assert "ValueError" in text


# ---- events


def test_the_settled_line_has_everything(stream: Stream) -> None:
    events = LogEvents(configure(stream))
    one = request("req-1", tenant="acme", priority=2, stream=True)
    events.settled(record(one))
    (line,) = stream.lines
    del line["timestamp"]
    assert line == {
        "level": "info",
        "event": "request.settled",
        "request_id": "req-1",
        "tenant": "acme",
        "model": "tiny",
        "endpoint": "chat",
        "priority": 2,
        "stream": True,
        "outcome": "completed",
        "reason": "stop",
        "replica": "mock-0",
        "prompt_tokens": 20,
        "completion_tokens": 3,
        "cached_tokens": 4,
        "usage_estimated": False,
        "queue_s": 0.25,
        "ttft_s": 0.75,
        "tpot_s": 0.125,
        "total_s": 2.0,
    }


def test_what_is_unknown_is_null(stream: Stream) -> None:
    events = LogEvents(configure(stream))
    line_of = timeline(queue_s=None, total_s=1.0)
    events.settled(
        record(outcome=Outcome.EVICTED, reason="queue_timeout", usage=Usage(estimated=True), line=line_of,
               replica=None)
    )  # fmt: skip
    events.settled(record(request(num_slots=3)))
    assert [stream.lines[0][key] for key in ("queue_s", "ttft_s", "tpot_s", "replica")] == [None] * 4
    assert stream.lines[0]["usage_estimated"] is True
    assert stream.lines[1]["tpot_s"] is None


def test_events_and_their_levels(stream: Stream) -> None:
    everything = _all_events(LogEvents(configure(stream, "debug")), stream)
    assert everything == [
        ("debug", "request.accepted"),
        ("info", "request.rejected"),
        ("info", "request.refused"),
        ("debug", "request.dispatched"),
        ("debug", "engine.batch"),
        ("info", "request.settled"),
        ("warning", "request.settled"),
        ("info", "engine.state"),
        ("warning", "engine.state"),
        ("warning", "engine.lease_suspect"),
    ]
    for level, shown in (("info", ("info", "warning")), ("warning", ("warning",)), ("error", ())):
        other = Stream()
        seen = _all_events(LogEvents(configure(other, level)), other)
        assert seen == [one for one in everything if one[0] in shown]


def _all_events(events: LogEvents, stream: Stream) -> list[tuple[str, str]]:
    events.accepted(request())
    events.rejected(request(), RateLimited("slow down", retry_after_s=1.23456789))
    events.refused("chat", 400, "invalid_request")
    events.dispatched(request(), "mock-0", 0.25)
    events.batch("mock-0", 3)
    events.settled(record())
    events.settled(record(outcome=Outcome.FAILED, reason="backend_crashed"))
    events.engine_state("mock-0", "ready", None)
    events.engine_state("mock-0", "crashed", "exit code -9")
    events.lease_suspect("mock-0", "req-1")
    assert MARKER.encode() not in stream.getvalue()
    return [(line["level"], line["event"]) for line in stream.lines]


def test_rejections_tell_reason_and_wait(stream: Stream) -> None:
    LogEvents(configure(stream)).rejected(request(), RateLimited("slow down", retry_after_s=1.23456789))
    assert stream.lines[0]["reason"] == "rate_limit_exceeded"
    assert stream.lines[0]["retry_after_s"] == 1.234568


def test_a_reason_that_is_no_word_is_not_repeated(stream: Stream) -> None:
    events = LogEvents(configure(stream))
    for reason in (f"{MARKER} sk-SECRETSECRET", "x" * 65, "", "a b"):
        events.settled(record(outcome=Outcome.FAILED, reason=reason))
        events.refused("chat", 400, reason)
    assert {line["reason"] for line in stream.lines} == {"other"}


def test_the_settled_line_is_cheap() -> None:
    """The bound is 25 us on a quiet machine; measured 12 to 15. Four times that catches a slip."""
    with open(os.devnull, "wb", buffering=0) as null:
        events = LogEvents(configure_logging(TelemetryConfig(log_format="json"), stream=null))
        end = record()
        best_s = 1.0
        for _ in range(5):
            started_at = time.process_time()
            for _ in range(500):
                events.settled(end)
            best_s = min(best_s, (time.process_time() - started_at) / 500)
    assert best_s < 100e-6


# ---- fan out


def test_every_listener_hears_every_event(stream: Stream) -> None:
    first, second = MetricsCollector(["tiny"]), MetricsCollector(["tiny"])
    events = FanOutEvents(first, NullEvents(), LogEvents(configure(stream, "debug")), second)
    events.accepted(request("a"))
    events.accepted(request("b"))
    events.rejected(request("c"), RateLimited("no"))
    events.refused("chat", 401, "invalid_api_key")
    events.dispatched(request("a"), "mock-0", 0.5)
    events.batch("mock-0", 2)
    events.settled(record(request("a")))
    events.engine_state("mock-0", "ready", None)
    events.lease_suspect("mock-0", "a")
    for metrics in (first, second):
        counts = metrics.counts
        assert metrics.num_active == 1
        assert counts.requests == 3
        assert sum(counts.refusals.values()) == 1
        assert sum(counts.engine_state_changes.values()) == 1
        assert counts.suspect_leases["mock-0",] == 1
        assert counts.batch_sizes[2] == 1
        assert metrics.series["tiny", "chat", "standard"].queue_wait.sum == 0.5
    assert len(stream.lines) == 9


def test_the_end_of_the_process_sends_what_waits() -> None:
    read_end, write_end = os.pipe()
    with open(write_end, "wb", buffering=0) as pipe:
        lines = configure_logging(TelemetryConfig(log_format="json"), stream=pipe)
        filler = {"fill": "x" * 1000}
        for _ in range(70):
            lines.write("info", "filler", filler)
        data = os.read(read_end, 1 << 20)
        for handler in logging.getLogger().handlers:
            handler.flush()
        data += os.read(read_end, 1 << 20)
    os.close(read_end)
    assert [json.loads(line)["event"] for line in data.splitlines()] == ["filler"] * 70
