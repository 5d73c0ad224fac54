"""Request bodies, from bytes to a dict, strictly and within limits.

Cheap byte scans come before the parser: nesting, number of containers and width are bounded before
anything is allocated, because deep or wide JSON costs many times its size, and some engines die of
nesting. NaN, infinity, lone surrogates and bad UTF-8 are the parser's to refuse. What the members
mean is not looked at here.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from llm_runtime.core.errors import InvalidRequest

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)

_ALL_BYTES = bytes(range(256))
_NOT_STRUCTURE: Final = bytes(byte for byte in _ALL_BYTES if byte not in b'[]{}"')
_DIGITS_AS_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_RUN: Final = b"0" * 19
_TRACE_OF_ONE: Final = b"0000"
"""What every fourth byte shows of a long run, wherever it begins."""
_FEW: Final = 16
_SHORT_BYTES: Final = 1024
_LONG_INTEGER: Final = re.compile(rb"(?<![\d.eE+])-?(?:9\d{18}|\d{20,})(?![\d.eE])")
"""Only such integers can lie outside 64 bits."""


class JsonLimits:
    """max_containers: objects and arrays in one body, wherever they are."""

    __slots__ = ("max_containers", "max_depth", "max_messages", "max_tools")

    def __init__(
        self,
        max_depth: int = 100,
        max_messages: int = 2000,
        max_tools: int = 128,
        max_containers: int = 100_000,
    ) -> None:
        self.max_depth: Final = max_depth
        self.max_messages: Final = max_messages
        self.max_tools: Final = max_tools
        self.max_containers: Final = max_containers


DEFAULT_LIMITS: Final = JsonLimits()

_loads: Final = orjson.loads


def parse_body(raw: bytes, limits: JsonLimits = DEFAULT_LIMITS) -> dict[str, Any]:
    """The JSON object in `raw`. Raises InvalidRequest, and nothing else, for whatever is wrong."""
    _check_structure(raw, limits)
    try:
        body = _loads(raw)
    except orjson.JSONDecodeError as error:
        if not raw.strip():
            raise InvalidRequest(
                "The request body is empty; a JSON object is needed.", reason="invalid_json"
            ) from None
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(
            f"The request body is not valid JSON ({where}): {error.msg}.", reason="invalid_json"
        ) from None
    if not isinstance(body, dict):
        raise InvalidRequest("The request body must be a JSON object.", reason="invalid_json")
    _check_width(body, limits)
    # `in` would first take what it looks for as a number, and raise and drop the error of that.
    if raw[::4].translate(_DIGITS_AS_ZERO).find(_TRACE_OF_ONE) >= 0:
        _check_integers(raw, body)
    return body


def _check_structure(raw: bytes, limits: JsonLimits) -> None:
    if _has_few_brackets(raw, limits.max_depth):
        return  # too few to break any limit, those inside strings included
    brackets = _outside_strings(raw, _NOT_STRUCTURE)
    if brackets.count(b"{") + brackets.count(b"[") > limits.max_containers:
        raise InvalidRequest(
            f"The request body has more than {limits.max_containers} objects and arrays.",
            reason="body_too_complex",
        )
    depth, widest = _measure(brackets)
    if depth > limits.max_depth:
        raise InvalidRequest(
            f"The request body is nested more than {limits.max_depth} levels deep.",
            reason="body_too_complex",
        )
    if widest > max(limits.max_messages, limits.max_tools):
        raise InvalidRequest(
            f"The request body has an array of {widest} objects; at most {limits.max_messages} are accepted.",
            param="messages",
            reason="array_too_long",
        )


def _has_few_brackets(raw: bytes, most: int) -> bool:
    """Whether `raw` has at most `most` opening ones. Counting looks at every byte; a search, for which the
    machine has an instruction, is faster by far while there is little to find in much."""
    if len(raw) <= _SHORT_BYTES:
        return raw.count(b"{") + raw.count(b"[") <= most
    num_left = min(most, _FEW)
    for bracket in (b"{", b"["):
        place = raw.find(bracket)
        while place >= 0:
            num_left -= 1
            if num_left < 0:
                return raw.count(b"{") + raw.count(b"[") <= most
            place = raw.find(bracket, place + 1)
    return True


def _outside_strings(raw: bytes, without: bytes = b"") -> bytes:
    """What is not inside a JSON string, less the bytes in `without`, which must not hold a quote.

    Of invalid JSON anything may come out; the parser refuses it.
    """
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(raw.translate(None, without).split(b'"')[::2])


def _measure(brackets: bytes) -> tuple[int, int]:
    """(greatest depth, objects in the fullest array that is a direct member of the root object)."""
    depth = deepest = widest = here = 0
    for byte in brackets:
        if byte in b"{[":
            if depth == 2 and byte == 0x7B:
                here += 1
            if depth == deepest:
                deepest += 1
            depth += 1
        else:
            depth -= 1
            if depth == 1:
                widest = max(widest, here)
                here = 0
    return deepest, widest


def _check_width(body: dict[str, Any], limits: JsonLimits) -> None:
    _check_length(body, "messages", limits.max_messages)
    _check_length(body, "tools", limits.max_tools)
    _check_length(body, "functions", limits.max_tools)


def _check_length(body: dict[str, Any], key: str, limit: int) -> None:
    value = body.get(key)
    if isinstance(value, list) and len(value) > limit:
        raise InvalidRequest(
            f"'{key}' has {len(value)} elements; at most {limit} are accepted.",
            param=key,
            reason="array_too_long",
        )


def _check_integers(raw: bytes, body: dict[str, Any]) -> None:
    if _LONG_RUN not in raw.translate(_DIGITS_AS_ZERO):
        return
    # The parser turns what does not fit 64 bits into a float, so only the text can tell.
    for digits in set(_LONG_INTEGER.findall(_outside_strings(raw))):
        if len(digits) > 20 or not INT64_MIN <= int(digits) <= INT64_MAX:
            raise InvalidRequest(
                "An integer of the request does not fit a signed 64-bit number.",
                param=next((key for key, value in body.items() if _is_huge(value)), None),
                reason="invalid_value",
            )


def _is_huge(value: Any) -> bool:
    if isinstance(value, float):
        return abs(value) >= 2.0**63
    return isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX
