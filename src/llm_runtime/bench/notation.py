"""Short notations of the command line for things with several parts. All raise ConfigError, naming the text.

traffic   name=chat,share=3,input=uniform:64:512,output=128,priority=2,tenant=a,prefix=1024:8,patience=5
profile   60@1-20,60@20,30@5          seconds @ rate, or rate from - to; per second
vary      max_batch_size=1,8,16
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from llm_runtime.bench.config import Prefix, Segment, TrafficClass
from llm_runtime.bench.lengths import parse_length
from llm_runtime.core.errors import ConfigError

TRAFFIC_KEYS = (
    "name", "share", "input", "output", "prefix", "turns", "think", "priority", "tenant", "patience", "key",
)  # fmt: skip


def parse_traffic(text: str, default: TrafficClass) -> TrafficClass:
    """A class of traffic; what is not said is as in `default`."""
    members = _members(text, TRAFFIC_KEYS)
    traffic = default
    try:
        for key, value in members.items():
            traffic = _with(traffic, key, value)
    except ValueError as error:
        raise ConfigError(f"the traffic {text!r} has a part that cannot be read: {error}") from error
    return traffic


def parse_prefix(text: str) -> Prefix:
    """`1024` or `1024:8`: tokens, and how many different prefixes."""
    tokens, _, number = text.partition(":")
    try:
        prefix = Prefix(int(tokens), int(number) if number else 1)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no prefix; write tokens or tokens:count, as in 1024:8") from error
    if prefix.tokens < 0 or prefix.count < 1:
        raise ConfigError(f"{text!r} is no prefix: tokens are at least 0, the count at least 1")
    return prefix


def parse_profile(text: str) -> tuple[Segment, ...]:
    segments = []
    for part in text.split(","):
        duration, at, span = part.strip().partition("@")
        first, _, last = span.partition("-")
        try:
            if not at:
                raise ValueError
            segments.append(Segment(float(duration), float(first), float(last or first)))
        except ValueError:
            raise ConfigError(f"{part!r} is no part of a profile; write 60@1-20 or 60@20") from None
    return tuple(segments)


def parse_vary(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    varied: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name or not values:
            raise ConfigError(f"{text!r} varies nothing; write name=1,2,4")
        varied[name] = tuple(value.strip() for value in values.split(","))
    return varied


def parse_headers(texts: Iterable[str]) -> dict[str, str]:
    """Of `name: value`."""
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise ConfigError(f"{name!r} is no header; write 'name: value'")
        headers[name.strip().lower()] = value.strip()
    return headers


def parse_numbers(text: str) -> tuple[float, ...]:
    """Of `1,2,4`; all above 0."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{text!r} is no list of numbers") from error
    if not all(0 < number < math.inf for number in numbers):
        raise ConfigError(f"{text!r} must be numbers above 0")
    return numbers


def parse_whole_numbers(text: str) -> tuple[int, ...]:
    numbers = parse_numbers(text)
    if not all(number.is_integer() for number in numbers):
        raise ConfigError(f"{text!r} must be whole numbers")
    return tuple(int(number) for number in numbers)


def _with(traffic: TrafficClass, key: str, value: str) -> TrafficClass:
    match key:
        case "name":
            return replace(traffic, name=value)
        case "share":
            return replace(traffic, share=float(value))
        case "input":
            return replace(traffic, input_tokens=parse_length(value))
        case "output":
            return replace(traffic, output_tokens=parse_length(value))
        case "prefix":
            return replace(traffic, prefix=parse_prefix(value))
        case "turns":
            return replace(traffic, turns=parse_length(value))
        case "think":
            return replace(traffic, think_s=float(value))
        case "priority":
            return replace(traffic, priority=int(value))
        case "tenant":
            return replace(traffic, tenant=value)
        case "patience":
            return replace(traffic, patience_s=float(value))
        case _:
            return replace(traffic, api_key=value)


def _members(text: str, known: Iterable[str]) -> Mapping[str, str]:
    members = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in known:
            raise ConfigError(f"{part!r} is no part of a traffic class; parts are {', '.join(known)}")
        members[key] = value
    return members
