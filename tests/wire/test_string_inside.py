"""What may go on unparsed as the inside of a JSON string is what JSON allows there, neither more nor less."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.wire.envelope import AS_IT_IS, ASCII_AS_IT_IS, STRING_INSIDE, is_inside

PIECES = [
    "a",
    "é",
    "\\",
    '"',
    "/",
    "n",
    "u",
    "0041",
    "d83d",
    "de00",
    "D800",
    "\\ud83d",
    "\\ude00",
    "\x01",
    "\\u00e9",
]


@pytest.mark.parametrize(
    "escaped", ["\\ud83d\\ude00", '\\"', "\\\\", "\\/", "\\u0041", "\\uD7FF", "\\uE000x"]
)
def test_escapes_of_json_pass(escaped: str) -> None:
    assert STRING_INSIDE.fullmatch(escaped.encode())


@pytest.mark.parametrize(
    "broken",
    ["\\ud83da", "\\ude00", "\\ud83d\\u0041", "\\q", "\\u12", "\\u", "a\\u", '\\"\\u', "\\", '"', "\n"],
)
def test_what_no_parser_takes_does_not(broken: str) -> None:
    assert not STRING_INSIDE.fullmatch(broken.encode())


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_the_same_as_a_parser_says(inside: str) -> None:
    try:
        orjson.loads(f'"{inside}"')
        is_valid = True
    except orjson.JSONDecodeError:
        is_valid = False
    assert bool(STRING_INSIDE.fullmatch(inside.encode())) == is_valid


@given(st.text())
def test_every_text_passes_as_encoders_write_it(text: str) -> None:
    for encoded in (orjson.dumps(text), json.dumps(text).encode()):
        assert STRING_INSIDE.fullmatch(encoded[1:-1])


@given(st.binary(max_size=8) | st.lists(st.sampled_from(PIECES), max_size=8).map("".join).map(str.encode))
def test_the_way_without_the_expression_says_the_same(inside: bytes) -> None:
    try:
        inside.decode()
    except UnicodeDecodeError:
        assert not is_inside(inside)
    else:
        assert is_inside(inside) is bool(STRING_INSIDE.fullmatch(inside))


def test_the_table_changes_what_must_be_escaped_and_nothing_else() -> None:
    changed = {byte for byte in range(256) if AS_IT_IS[byte] != byte}
    assert changed == {*range(0x20), ord('"'), ord("\\")}
    changed_too = {byte for byte in range(256) if ASCII_AS_IT_IS[byte] != byte}
    assert changed_too == changed | set(range(0x80, 0x100))
