"""What stays the same from event to event, learnt as bytes.

An event is a constant envelope around one changing string. Once an event was parsed and brought
into shape, its two ends (raw, as the engine writes them, and canonical, as clients get them) are
known. Any later event with the same raw ends and a plain JSON string between them means the same
but for that string, so it can be passed on without parsing: the comparison proves it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from llm_runtime.core.quick import quick
from llm_runtime.wire.dialects.chat import TEXT_MEMBERS

# The inside of a JSON string: no bare quote, no control character, only escapes that JSON has, and no half of
# a surrogate pair: what fits can be sent on unparsed.
_HEX = rb"[0-9a-fA-F]"
_PLAIN = rb'[^"\\\x00-\x1f]*+'
_UNIT = rb"(?:[0-9a-cefA-CEF]" + _HEX + rb"|[dD][0-7])" + _HEX + rb"{2}"
_PAIR = rb"[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2}"
_ESCAPE = rb'\\(?:["\\/bfnrt]|u(?:' + _UNIT + rb"|" + _PAIR + rb"))"
STRING_INSIDE = re.compile(_PLAIN + rb"(?:" + _ESCAPE + _PLAIN + rb")*+")

_MEMBERS = (*TEXT_MEMBERS, "arguments", "text")
_OPENINGS = {name: re.compile(rb'"' + name.encode() + rb'"\s*:\s*"') for name in _MEMBERS}
_MARK = "\ufdd0slot\ufdd1"
"""Stands for the changing string; noncharacters, which no text has any business to hold."""
_ENCODED_MARK = orjson.dumps(_MARK)[1:-1]


@quick
@dataclass(frozen=True, slots=True)
class Envelope:
    """prefix, suffix: the raw ends; the suffix includes the blank line.

    new_prefix, new_suffix: what clients get instead, where `as_read` is False.
    """

    choice_index: int
    prefix: bytes
    suffix: bytes
    as_read: bool
    new_prefix: bytes
    new_suffix: bytes


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
    openings = list(_OPENINGS[name].finditer(raw))
    if len(openings) != 1:
        return None
    start = openings[0].end()
    inside = STRING_INSIDE.match(raw, start)
    end = inside.end() if inside else start
    text = holder[name]
    if orjson.loads(b'"' + raw[start:end] + b'"') != text:
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


def _changing_string(choice: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    delta = choice.get("delta")
    if delta is None:
        return (choice, "text") if choice.get("text") else None
    if "role" in delta:
        return None  # said once per choice, so not part of what repeats
    places = [(delta, name) for name in TEXT_MEMBERS if delta.get(name)]
    calls = delta.get("tool_calls")
    if calls:
        function = calls[0].get("function") if len(calls) == 1 else None
        if not isinstance(function, dict) or not function.get("arguments"):
            return None
        places.append((function, "arguments"))
    if len(places) != 1 or not isinstance(places[0][0][places[0][1]], str):
        return None
    return places[0]
