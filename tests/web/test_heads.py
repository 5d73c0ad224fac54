"""Heads made of lines: on the wire they are what pairs of headers become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.web.cycle import Cycle
from llm_runtime.web.errors import Header
from llm_runtime.web.heads import FixedLines, lines_of, pairs_of
from tests.dataplane.path import Wire

names = st.sampled_from([b"x-request-id", b"server-timing", b"content-type", b"x-ratelimit-limit-tokens"])
values = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20).map(str.encode)
headers = st.lists(st.tuples(names, values), max_size=4)
fixed = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([b"Date", b"server"]), values),
        st.tuples(st.just(b"Connection"), st.sampled_from([b"close", b"keep-alive"])),
    ),
    max_size=3,
)


def two(fixed: list[Header], is_old: bool, keep_alive: bool) -> tuple[Cycle, Wire, Cycle, Wire]:
    wires = (Wire(), Wire())
    for wire in wires:
        wire.default_headers = list(fixed)
    one, other = (Cycle(wire, wire.flow, {}, is_old=is_old, keep_alive=keep_alive) for wire in wires)
    return one, wires[0], other, wires[1]


@given(fixed, headers, st.binary(max_size=20), st.booleans(), st.booleans())
def test_a_whole_reply(
    fixed: list[Header], given: list[Header], body: bytes, is_old: bool, keep_alive: bool
) -> None:
    one, wire, other, other_wire = two(fixed, is_old, keep_alive)
    one.reply(lines_of(given), body)
    other.respond(200, [*given, (b"content-length", b"%d" % len(body))], body)
    assert (wire.raw, wire.closed, wire.num_answered) == (
        other_wire.raw,
        other_wire.closed,
        other_wire.num_answered,
    )
    assert one.complete


@given(fixed, headers, st.lists(st.binary(max_size=3000)), st.booleans(), st.booleans())
async def test_a_stream(
    fixed: list[Header], given: list[Header], parts: list[bytes], is_old: bool, keep_alive: bool
) -> None:
    one, wire, other, other_wire = two(fixed, is_old, keep_alive)
    one.begin(lines_of(given))
    await other.send({"type": "http.response.start", "status": 200, "headers": given})
    for part in parts:
        one.write(part)
        await other.send({"type": "http.response.body", "body": part, "more_body": True})
    one.finish(b"end")
    await other.send({"type": "http.response.body", "body": b"end"})
    assert (wire.raw, wire.closed, wire.num_answered) == (
        other_wire.raw,
        other_wire.closed,
        other_wire.num_answered,
    )


async def test_who_has_left_gets_neither() -> None:
    for is_stream in (False, True):
        wire = Wire()
        made = Cycle(wire, wire.flow, {})
        wire.gone = True
        made.lost()
        if is_stream:
            made.begin(b"")
            made.finish(b"a")
        else:
            made.reply(b"", b"a")
        assert (wire.raw, made.started, made.complete) == (b"", False, False)


@given(headers)
def test_lines_are_pairs_again(given: list[Header]) -> None:
    assert pairs_of(lines_of(given)) == given


def test_fixed_lines_follow_the_list_they_are_made_of() -> None:
    lines = FixedLines()
    lines.update([(b"Date", b"today")])
    assert (lines.lines, lines.frames) == (b"date: today\r\n", False)
    lines.update([(b"date", b"tomorrow"), (b"Connection", b"close")])
    assert (lines.lines, lines.frames) == (b"date: tomorrow\r\nconnection: close\r\n", True)
    with pytest.raises(RuntimeError, match="Invalid HTTP header"):
        lines.update([(b"date", b"a\r\nb: c")])
    lines.update([])
    assert lines.lines == b""
