"""What stays the same from event to event, learnt as bytes.

An event is a constant envelope around one changing string. Once an event was parsed and brought
into shape, its two ends (raw, as the engine writes them, and canonical, as clients get them) are
known. Any later event with the same raw ends and a plain JSON string between them means the same
but for that string, so it can be passed on without parsing: the comparison proves it.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from llm_runtime.wire.dialects.chat import TEXT_MEMBERS
from llm_runtime.wire.sse import is_utf8

# The inside of a JSON string: no bare quote, no control character, only escapes that JSON has, and no half of
# a surrogate pair: what fits can be sent on unparsed. Nothing here is ambiguous, so nothing is gained by
# possessive quantifiers, with which Python before 3.11.5 goes astray (CPython issue 106052) or dies.
_HEX = rb"[0-9a-fA-F]"
_PLAIN = rb'[^"\\\x00-\x1f]*'
_UNIT = rb"(?:[0-9a-cefA-CEF]" + _HEX + rb"|[dD][0-7])" + _HEX + rb"{2}"
_PAIR = rb"[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2}"
_ESCAPE = rb'\\(?:["\\/bfnrt]|u(?:' + _UNIT + rb"|" + _PAIR + rb"))"
STRING_INSIDE: Final = re.compile(_PLAIN + rb"(?:" + _ESCAPE + _PLAIN + rb")*")

AS_IT_IS: Final = bytes(byte ^ 1 if byte < 0x20 or byte in b'"\\' else byte for byte in range(0x100))
"""A table in which bytes that stand for themselves inside a JSON string stay what they are, and no others:
`translate` gives back its very object if it changed nothing, for a fifth of what the expression costs."""

ASCII_AS_IT_IS: Final = bytes(byte if byte < 0x80 else byte ^ 1 for byte in AS_IT_IS)
"""The same for ASCII alone: what it leaves as it is needs no look whether it is UTF-8."""

_MEMBERS = (*TEXT_MEMBERS, "arguments", "text")
_OPENINGS: Final = {name: re.compile(rb'"' + name.encode() + rb'"\s*:\s*"') for name in _MEMBERS}
_KEYS: Final = {name: b'"' + name.encode() + b'"' for name in _MEMBERS}
_MARK = "\ufdd0slot\ufdd1"
"""Stands for the changing string; noncharacters, which no text has any business to hold."""
_ENCODED_MARK: Final = orjson.dumps(_MARK)[1:-1]


_is_string_inside: Final = STRING_INSIDE.fullmatch
_translated: Final = bytes.translate


class Envelope:
    """prefix, suffix: the raw ends; the suffix includes the blank line.

    new_prefix, new_suffix: what clients get instead, where `as_read` is False. finish_reason: of an event
    that ends its choice. has_text: False where nothing may stand between the ends.
    """

    __slots__ = (
        "as_read",
        "choice_index",
        "finish_reason",
        "has_text",
        "new_prefix",
        "new_suffix",
        "prefix",
        "suffix",
    )

    def __init__(
        self,
        choice_index: int,
        prefix: bytes,
        suffix: bytes,
        as_read: bool,
        new_prefix: bytes,
        new_suffix: bytes,
        finish_reason: str | None = None,
        has_text: bool = True,
    ) -> None:
        # First what every token looks at: compiled, these lie side by side in memory, in this order.
        self.prefix: Final = prefix
        self.suffix: Final = suffix
        self.as_read: Final = as_read
        self.choice_index: Final = choice_index
        self.new_prefix: Final = new_prefix
        self.new_suffix: Final = new_suffix
        self.finish_reason: Final = finish_reason
        self.has_text: Final = has_text


def is_inside(text: bytes) -> bool:
    """Whether these bytes are UTF-8 that may stand inside a JSON string as they are."""
    if _translated(text, AS_IT_IS) is not text and _is_string_inside(text) is None:
        return False
    return is_utf8(text)


def learn(raw: bytes, event: dict[str, Any], *, changed: bool) -> Envelope | None:
    """The envelope of `raw`, whose shaped form is `event`; None where no single string changes.

    raw: one event of a single `data:` line, blank line included. changed: `event` differs from raw
    in more than spelling. `event` is the same afterwards.
    """
    choices = event["choices"]
    if len(choices) != 1 or choices[0]["finish_reason"] is not None or choices[0].get("logprobs"):
        return None
    place = _changing_string(choices[0])
    if place is None:
        return None
    holder, name = place
    text = holder[name]
    start, end = _slot(raw, name, text)
    if start < 0:
        return None
    prefix, suffix = raw[:start], raw[end:]
    index = choices[0]["index"]
    if not changed:
        return Envelope(index, prefix, suffix, True, prefix, suffix)
    holder[name] = _MARK
    ends = (b"data: " + orjson.dumps(event) + b"\n\n").split(_ENCODED_MARK)
    holder[name] = text
    if len(ends) != 2:
        return None
    return Envelope(index, prefix, suffix, False, ends[0], ends[1])


def text_slot(raw: bytes, choice: dict[str, Any]) -> tuple[int, int] | None:
    """Where in `raw`, one event with this choice alone, its only text begins and ends; None where there is no
    text, or no telling where it stands."""
    place = _changing_string(choice)
    if place is None:
        return None
    holder, name = place
    start, end = _slot(raw, name, holder[name])
    return None if start < 0 else (start, end)


def _slot(raw: bytes, name: str, text: str) -> tuple[int, int]:
    """Where in `raw` the inside of the only member `name` begins and ends, which says `text`; -1 twice if
    there are more of that name, or the one there is says something else."""
    key = _KEYS[name]
    parts = raw.split(key)
    encoded = text.encode()
    if len(parts) == 2 and _translated(encoded, AS_IT_IS) is encoded:
        # As nearly all engines write nearly all texts. No other spelling of the name is there.
        rest, length = parts[1], len(encoded) + 2
        if rest[:length] == b':"' + encoded and rest[length : length + 1] == b'"':
            start = len(parts[0]) + len(key) + 2
            return start, start + len(encoded)
    openings = list(_OPENINGS[name].finditer(raw))
    if len(openings) != 1:
        return -1, -1
    start = openings[0].end()
    inside = STRING_INSIDE.match(raw, start)
    end = inside.end() if inside else start
    return (start, end) if orjson.loads(b'"' + raw[start:end] + b'"') == text else (-1, -1)


def _changing_string(choice: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    delta = choice.get("delta")
    if delta is None:
        return (choice, "text") if choice.get("text") else None
    if "role" in delta:
        return None  # said once per choice, so not part of what repeats
    holder: dict[str, Any] | None = None
    place = ""
    for name in TEXT_MEMBERS:
        if delta.get(name):
            if holder is not None:
                return None
            holder, place = delta, name
    calls = delta.get("tool_calls")
    if calls:
        function = calls[0].get("function") if len(calls) == 1 else None
        if holder is not None or not isinstance(function, dict) or not function.get("arguments"):
            return None
        holder, place = function, "arguments"
    return (holder, place) if holder is not None and isinstance(holder[place], str) else None
