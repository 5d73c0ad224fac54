"""The Server-Timing receipt."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.timeline import Timeline
from llm_runtime.telemetry.server_timing import server_timing
from tests.telemetry.builders import timeline

TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
ENTRY = rf'{TOKEN}(;(dur=\d+(\.\d+)?|desc="[ !#-\[\]-~]*"))?'
HEADER = re.compile(rf"({ENTRY}(, {ENTRY})*)?")


def test_a_plain_reply_tells_everything() -> None:
    assert server_timing(timeline(), replica="mock-0", policy="fair") == (
        "queue;dur=250, prefill;dur=500, decode;dur=250, total;dur=2000, "
        'replica;desc="mock-0", policy;desc="fair"'
    )


def test_a_stream_tells_what_is_known_with_the_first_token() -> None:
    line = timeline(gaps_s=(), total_s=None)
    assert (
        server_timing(line, replica="a", decode=False) == 'queue;dur=250, prefill;dur=500, replica;desc="a"'
    )


def test_nothing_known_is_empty() -> None:
    assert server_timing(Timeline(1.0)) == ""


def test_milliseconds_keep_microseconds_and_drop_zeros() -> None:
    line = Timeline(1.0)
    line.queued_at, line.dispatched_at = 1.0, 1.0004564
    assert server_timing(line) == "queue;dur=0.456"
    line.dispatched_at = 1.1
    assert server_timing(line) == "queue;dur=100"
    line.dispatched_at = 1.0
    assert server_timing(line) == "queue;dur=0"


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a\r\nSet-Cookie: x", "größe", "\ud800", "x" * 500, "a, b;c=d"]
)
def test_a_name_cannot_break_the_header(name: str) -> None:
    value = server_timing(timeline(), replica=name, policy=name)
    assert HEADER.fullmatch(value)
    assert value.isascii()
    assert len(value) < 300


@given(st.text(), st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_grammar_holds_for_any_name_and_time(name: str, queue_s: float, prefill_s: float) -> None:
    value = server_timing(timeline(queue_s=queue_s, prefill_s=prefill_s, total_s=queue_s), replica=name)
    assert HEADER.fullmatch(value)
