"""Ordinary generation requests, read without the validator.

Nearly every request has a few members of the plainest kinds, and for these one walk over the body finds
what the schemas and `messages.py` would find, at a fraction of the price. It takes only what certainly
passes them and gives None for all else, which then goes their way: they stay the truth, and they alone know
what is wrong with a request. A test plays both against each other.

Bodies are as `wire/json.py` lets them through: types are exactly JSON's, and no string has half a surrogate.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from llm_runtime.core.request import HIGHEST_PRIORITY, LOWEST_PRIORITY
from llm_runtime.wire.messages import utf8_length
from llm_runtime.wire.parsed_request import TIER_PRIORITY, ParsedRequest
from llm_runtime.wire.schemas.chat import Role

_LARGE: Final = 2**31 - 1
"""Larger integers may be fine, but nobody asks for as much."""
_LONGEST_MODEL: Final = 512
_NO_PARTS: Final[frozenset[str]] = frozenset()
_ROLES: Final = frozenset(get_args(Role))
_MESSAGE_STRINGS: Final = frozenset({"role", "content", "name", "tool_call_id"})

_INTEGERS: Final[dict[str, tuple[int, int]]] = {
    "seed": (-_LARGE, _LARGE),
    "top_k": (-1, _LARGE),
    "min_tokens": (0, _LARGE),
}
_NUMBERS: Final[dict[str, tuple[float, float]]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}
_BOOLEANS: Final = frozenset({"ignore_eos"})
_CHAT_BOOLEANS: Final = frozenset({"ignore_eos", "logprobs", "parallel_tool_calls", "store"})


def ordinary_request(  # noqa: PLR0915 - one walk, as every call costs
    body: dict[str, Any], *, chat: bool
) -> ParsedRequest | None:
    """A chat or a legacy completion; None unless it is an ordinary one. `body` is not changed."""
    model = ""
    stream = with_options = include_usage = False
    num_sequences = 1
    prompt_bytes = -1
    cap = newer_cap = -1
    priority = -1
    tier: str | None = None
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue  # which means absent
        if name == "messages":
            prompt_bytes = _text_of_messages(value) if chat else -1
            if prompt_bytes < 0:
                return None
            kept[name] = value
        elif name == "model":
            if type(value) is not str or not 1 <= len(value) <= _LONGEST_MODEL:
                return None
            model = value
            kept[name] = value
        elif name == "stream":
            if type(value) is not bool:
                return None
            stream = value
        elif name == "max_tokens":
            if type(value) is not int or not 0 <= value <= _LARGE:
                return None
            cap = max(1, value)
            kept[name] = cap
        elif _is_option(name, value, chat):
            kept[name] = value
        elif name == "stream_options":
            if type(value) is not dict or len(value) != 1:
                return None
            wanted = value.get("include_usage")
            if type(wanted) is not bool:
                return None
            include_usage = wanted
            with_options = True
        elif name == "max_completion_tokens":
            if not chat or type(value) is not int or not 0 <= value <= _LARGE:
                return None
            newer_cap = max(1, value)
        elif name == "n":
            if type(value) is not int or not 1 <= value <= 128:
                return None
            num_sequences = value
            kept[name] = value
        elif name == "prompt":
            if chat or type(value) is not str:
                return None
            prompt_bytes = utf8_length(value)
            kept[name] = value
        elif name == "service_tier":
            if type(value) is not str or value not in TIER_PRIORITY:
                return None
            tier = value
        elif name == "priority":
            if type(value) is not int or not HIGHEST_PRIORITY <= value <= LOWEST_PRIORITY:
                return None
            priority = value
        else:
            return None
    if not model or prompt_bytes < 0 or (with_options and not stream):
        return None
    cap_field: str | None = None
    if newer_cap >= 0:
        kept["max_tokens"] = cap = newer_cap
        cap_field = "max_completion_tokens"
    elif cap >= 0:
        cap_field = "max_tokens"
    if priority < 0 and tier is not None:
        priority = TIER_PRIORITY[tier]
    return ParsedRequest(
        model,
        stream,
        include_usage,
        num_sequences,
        1,
        cap if cap >= 0 else None,
        priority if priority >= 0 else None,
        tier,
        kept,
        _NO_PARTS,
        prompt_bytes,
        None,
        {},
        cap_field,
    )


def _text_of_messages(messages: Any) -> int:
    """UTF-8 bytes of a conversation of plain texts; -1 if it is anything else."""
    if type(messages) is not list or not messages:
        return -1
    num_bytes = 0
    for message in messages:
        if type(message) is not dict:
            return -1
        role = message.get("role")
        content = message.get("content")
        if type(content) is not str or type(role) is not str or role not in _ROLES:
            return -1
        if len(message) != 2:
            for name, value in message.items():
                if name not in _MESSAGE_STRINGS or type(value) is not str:
                    return -1
        num_bytes += utf8_length(content)
    return num_bytes


def _is_option(name: str, value: Any, chat: bool) -> bool:
    """Whether it is a member that is passed on as it is, and within its bounds."""
    bounds = _NUMBERS.get(name)
    if bounds is not None:
        return (type(value) is float or type(value) is int) and bounds[0] <= value <= bounds[1]
    limits = _INTEGERS.get(name)
    if limits is not None:
        return type(value) is int and limits[0] <= value <= limits[1]
    if name == "stop":
        if type(value) is str:
            return value != ""
        return type(value) is list and 1 <= len(value) <= 4 and all(type(v) is str and v for v in value)
    if name == "user":
        return type(value) is str
    return type(value) is bool and name in (_CHAT_BOOLEANS if chat else _BOOLEANS)
