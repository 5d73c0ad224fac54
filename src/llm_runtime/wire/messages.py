"""The conversation of a chat request: content forms, part types, and how much text it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.wire.schemas.translate import missing, path

TEXT_ONLY: Final = frozenset({"text"})


class Conversation:
    """messages: as sent, less the members that were null. text_bytes: UTF-8 bytes that a prompt is
    made of. part_types: of every content array, e.g. `text`, `image_url`."""

    __slots__ = ("messages", "part_types", "text_bytes")

    def __init__(self, messages: list[dict[str, Any]], text_bytes: int, part_types: frozenset[str]) -> None:
        self.messages: Final = messages
        self.text_bytes: Final = text_bytes
        self.part_types: Final = part_types


def read_messages(messages: list[dict[str, Any]], accept_parts: frozenset[str] | None) -> Conversation:
    """Checks what the schema left open. `messages` have passed it and are not changed.

    accept_parts: part types allowed; None allows all, for a later `refuse_parts`.
    Raises InvalidRequest naming `messages[i]...`.
    """
    cleaned: list[dict[str, Any]] = []
    part_types: set[str] = set()
    text_bytes = 0
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, str):
            text_bytes += utf8_length(content)
        elif content is None:
            _check_absent_content(message, index)
        else:
            text_bytes += _read_parts(content, index, accept_parts, part_types)
        if len(message) == 2:
            cleaned.append(message)
        else:
            cleaned.append(_without_nulls(message))
            text_bytes += _bytes_of_calls(message)
    return Conversation(cleaned, text_bytes, frozenset(part_types))


def refuse_parts(messages: Sequence[dict[str, Any]], accepted: frozenset[str]) -> None:
    """Raises InvalidRequest for the first content part whose type an engine did not declare."""
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            for position, part in enumerate(content):
                if part["type"] not in accepted:
                    raise _unsupported(index, position)


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _check_absent_content(message: dict[str, Any], index: int) -> None:
    stands_in = ("tool_calls", "function_call", "refusal", "audio")
    if message["role"] == "assistant" and any(message.get(key) for key in stands_in):
        return
    raise missing(path("messages", index, "content"))


def _read_parts(content: Any, index: int, accept_parts: frozenset[str] | None, part_types: set[str]) -> int:
    where = ("messages", index, "content")
    if not isinstance(content, list):
        raise InvalidRequest(
            f"'{path(*where)}' must be a string or an array of content parts.",
            param=path(*where),
            reason="invalid_type",
        )
    if not content:
        raise InvalidRequest(f"'{path(*where)}' must not be empty.", param=path(*where), reason="empty_array")
    text_bytes = 0
    for position, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            param = path(*where, position)
            raise InvalidRequest(
                f"'{param}' must be an object with a type.", param=param, reason="invalid_type"
            )
        if kind == "text":
            text = part.get("text")
            if not isinstance(text, str):
                param = path(*where, position, "text")
                raise InvalidRequest(f"'{param}' must be a string.", param=param, reason="invalid_type")
            text_bytes += utf8_length(text)
        elif accept_parts is not None and kind not in accept_parts:
            raise _unsupported(index, position)
        part_types.add(kind)
    return text_bytes


def _unsupported(index: int, position: int) -> InvalidRequest:
    param = path("messages", index, "content", position)
    return InvalidRequest(
        f"'{param}' is of a type that this model does not take.",
        param=param,
        reason="unsupported_content_part",
    )


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """Null means absent, also inside a message; content stays null, engines tell it from absent.
    An empty list of calls is what some SDKs write for none."""
    if None not in message.values() and message.get("tool_calls") != []:
        return message
    return {
        key: value
        for key, value in message.items()
        if key == "content" or not (value is None or (key == "tool_calls" and value == []))
    }


def _bytes_of_calls(message: dict[str, Any]) -> int:
    calls = [call.get("function") or call.get("custom") or {} for call in message.get("tool_calls") or ()]
    if function_call := message.get("function_call"):
        calls.append(function_call)
    return sum(utf8_length(value) for call in calls for value in call.values() if isinstance(value, str))
