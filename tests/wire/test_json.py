from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.wire.json import INT64_MAX, INT64_MIN, JsonLimits, parse_body


def refusal(raw: bytes, limits: JsonLimits | None = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(raw, limits or JsonLimits())
    return caught.value


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"  \n",
        b'{"model":',
        b'"hello"',
        b"[1,2]",
        b"null",
        b'{"a":"\xff\xfe"}',
        b"\x1f\x8b\x08\x00gzip",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e999}',
        b'{"a":-1e999}',
        b'{"a":"x\\ud800y"}',
        b'{"\\ud800":1}',
        b'{"a":1}{"b":2}',
        b'{"a":1,}',
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    error = refusal(raw)
    assert error.reason == "invalid_json"
    assert len(error.message) < 200
    error.message.encode()  # can be written again
    assert not re.search(r"Error|Exception", error.message)


def test_a_proper_surrogate_pair_is_one_character() -> None:
    assert parse_body(rb'{"a":"\ud83d\ude00"}') == {"a": "😀"}


def nested(depth: int, inside: str = "") -> bytes:
    opening, closing = '{"a":' * (depth // 2) + "[" * (depth - depth // 2), "]" * (depth - depth // 2)
    return (opening + inside + closing + "}" * (depth // 2)).encode()


def test_nesting_is_counted_exactly() -> None:
    assert parse_body(nested(100))
    assert refusal(nested(101)).reason == "body_too_complex"
    assert refusal(nested(1000)).reason == "body_too_complex"
    assert refusal(nested(50_000)).reason == "body_too_complex"


def test_unbalanced_nesting_is_refused_whatever_it_is_called() -> None:
    refusal(b'{"a":' + b"[" * 60_000)
    refusal(b'{"a":' + b"]" * 60_000)


@pytest.mark.parametrize(
    "text", ["[" * 500, "{[" * 300, '\\"[[' * 200, "\\\\" * 51 + "[" * 101, '"' * 7 + "[" * 200]
)
def test_brackets_inside_strings_do_not_count(text: str) -> None:
    body = {"messages": [{"role": "user", "content": text}], text: [text, [text]]}
    assert parse_body(orjson.dumps(body)) == body


@given(
    st.recursive(
        st.text(alphabet='[]{}\\":,a\n', max_size=12) | st.integers(-9, 9),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(alphabet='"[}\\', max_size=3), inner, max_size=3)
        ),
        max_leaves=25,
    ),
    st.integers(1, 8),
)
@settings(max_examples=150, deadline=None)
def test_the_scan_agrees_with_the_tree(value: Any, max_depth: int) -> None:
    body = {"a": value}
    raw = orjson.dumps(body)
    if depth_of(body) > max_depth:
        assert refusal(raw, JsonLimits(max_depth=max_depth)).reason == "body_too_complex"
    else:
        assert parse_body(raw, JsonLimits(max_depth=max_depth)) == body


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def test_too_many_containers_are_refused_before_parsing() -> None:
    raw = b'{"a":[' + b"[]," * 200_000 + b"[]]}"
    assert refusal(raw).reason == "body_too_complex"
    assert parse_body(b'{"a":[' + b"1," * 200_000 + b"1]}")["a"][-1] == 1


@pytest.mark.parametrize(("key", "limit"), [("messages", 2000), ("tools", 128), ("functions", 128)])
def test_lists_of_objects_are_limited(key: str, limit: int) -> None:
    entry = {"role": "user", "content": "x"}
    assert len(parse_body(orjson.dumps({key: [entry] * limit}))[key]) == limit
    error = refusal(orjson.dumps({key: [entry] * (limit + 1)}))
    assert error.reason == "array_too_long"
    assert error.param == key
    assert str(limit) in error.message


def test_limits_are_the_callers() -> None:
    raw = orjson.dumps({"messages": [{}] * 3})
    assert refusal(raw, JsonLimits(max_messages=2)).param == "messages"
    assert parse_body(raw, JsonLimits(max_messages=3))


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"seed":9223372036854775808}', "seed"),
        (b'{"seed":-9223372036854775809}', "seed"),
        (b'{"x":1,"seed":18446744073709551616}', "seed"),
        (b'{"seed":' + b"1" * 300 + b"}", "seed"),
        (b'{"a":{"b":[1,{"c":9223372036854775808}]}}', None),
        (b'{"a":{"b":[-99999999999999999999]}}', None),
    ],
)
def test_integers_beyond_64_bits_are_refused_at_any_depth(raw: bytes, param: str | None) -> None:
    error = refusal(raw)
    assert error.param == param
    assert "64" in error.message


def test_an_integer_too_long_even_for_a_float_is_refused() -> None:
    assert refusal(b'{"seed":' + b"1" * 5000 + b"}").reason == "invalid_json"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"seed":9223372036854775807}',
        b'{"seed":-9223372036854775808}',
        b'{"a":"99999999999999999999999"}',
        b'{"a":0.99999999999999999999999}',
        b'{"a":1e18,"b":99999999999999999999.5}',
        b'{"99999999999999999999":["99999999999999999999"]}',
        b'{"a":"\\"99999999999999999999"}',
    ],
)
def test_long_digits_that_are_no_huge_integers_pass(raw: bytes) -> None:
    assert parse_body(raw) == orjson.loads(raw)


@given(st.text(alphabet='019[]{}\\"-.e ', max_size=60), st.integers(-(2**66), 2**66))
@settings(max_examples=300, deadline=None)
def test_an_integer_is_measured_wherever_it_stands(text: str, number: int) -> None:
    raw = orjson.dumps({"a": text})[:-1] + b',"b":%d}' % number
    if INT64_MIN <= number <= INT64_MAX:
        assert parse_body(raw) == {"a": text, "b": number}
    else:
        assert "64" in refusal(raw).message
