"""A Responses request as a chat request. Nothing is stored here, so whatever refers to an earlier
response is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_runtime.wire.facades.base import bad_form, string_at, unsupported

_TRANSLATED = frozenset(
    {"input", "instructions", "max_output_tokens", "tools", "tool_choice", "text", "reasoning"}
)

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "store": (True, False),
    "background": (False,),
    "truncation": ("disabled",),
    "include": ([], ["reasoning.encrypted_content"]),
    "stream_options": ({}, {"include_obfuscation": False}, {"include_obfuscation": True}),
    "top_logprobs": (0,),
}
"""Values that ask for nothing that could be missed; `store` is answered with false."""

_NEEDS_A_STORE = frozenset({"previous_response_id", "conversation", "prompt"})
_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})


def chat_of_response(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request's body; members nobody knows go along, for the engine to judge."""
    chat: dict[str, Any] = {}
    for name, value in body.items():
        if name in _NEEDS_A_STORE:
            raise unsupported(name, "responses are not stored here")
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                raise unsupported(name)
        elif name not in _TRANSLATED:
            chat[name] = value
    chat["messages"] = _conversation(body)
    if "max_output_tokens" in body:
        chat["max_tokens"] = body["max_output_tokens"]
    if body.get("tools"):
        chat["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body["tools"])]
    if "tool_choice" in body:
        chat["tool_choice"] = _tool_choice(body["tool_choice"])
    chat.update(_text_format(body.get("text") or {}))
    effort = (body.get("reasoning") or {}).get("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    return chat


def _conversation(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body["input"]
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
        return messages
    for index, item in enumerate(given):
        where = f"input[{index}]"
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(_message(item, where))
        elif kind == "function_call":
            _add_call(messages, item, where)
        elif kind == "function_call_output":
            output = _content(item.get("output"), f"{where}.output")
            call_id = string_at(item, "call_id", where)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        elif kind != "reasoning":
            raise unsupported(where, "such an item is not possible here")
    return messages


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise bad_form(f"{where}.role", "'user', 'assistant', 'system' or 'developer'")
    content = _content(item.get("content"), f"{where}.content")
    return {"role": role, "content": content}


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    """Calls that follow one another, or the assistant's words, are one message in a chat."""
    function = {"name": string_at(item, "name", where), "arguments": string_at(item, "arguments", where)}
    call = {"id": string_at(item, "call_id", where), "type": "function", "function": function}
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant":
        last.setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_form(where, "a string or an array of content parts")
    parts: list[dict[str, Any]] = []
    for position, part in enumerate(content):
        here = f"{where}[{position}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _TEXT_PARTS:
            parts.append({"type": "text", "text": string_at(part, "text", here)})
        elif kind == "refusal":
            parts.append({"type": "text", "text": string_at(part, "refusal", here)})
        elif kind == "input_image" and part.get("image_url"):
            image: dict[str, Any] = {"url": string_at(part, "image_url", here)}
            if part.get("detail"):
                image["detail"] = part["detail"]
            parts.append({"type": "image_url", "image_url": image})
        else:
            raise unsupported(here, "such a content part is not possible here")
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise unsupported(f"{where}.type", "only functions are possible")
    function: dict[str, Any] = {"name": string_at(tool, "name", where)}
    for name in ("description", "parameters", "strict"):
        if tool.get(name) is not None:
            function[name] = tool[name]
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": string_at(choice, "name", "tool_choice")}}
    raise unsupported("tool_choice", "only a function can be chosen")


def _text_format(text: Mapping[str, Any]) -> dict[str, Any]:
    chat: dict[str, Any] = {}
    wanted = text.get("format") or {"type": "text"}
    if not isinstance(wanted, Mapping) or not isinstance(wanted.get("type"), str):
        raise bad_form("text.format", "an object with a type")
    if wanted["type"] == "json_schema":
        schema = {name: value for name, value in wanted.items() if name != "type" and value is not None}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif wanted["type"] != "text":
        chat["response_format"] = dict(wanted)
    if text.get("verbosity") is not None:
        chat["verbosity"] = text["verbosity"]
    return chat
