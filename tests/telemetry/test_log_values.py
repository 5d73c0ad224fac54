"""Log lines of values of every kind, and the console."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from tests.telemetry.builders import MARKER, request
from tests.telemetry.log_stream import Stream, Strict, configure, value_error

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
        value_error()
    except ValueError:
        structlog.get_logger().exception("crashed")
    text = stream.getvalue().decode()
    assert MARKER not in text.replace('f"cannot parse {MARKER}"', "")
    assert len(text.splitlines()) >= 3
    assert "ValueError" in text
