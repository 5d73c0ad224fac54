"""A Messages request as a chat request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from llm_runtime.wire.facades.base import bad_form, string_at, unsupported

MAX_STOPS = 4

_RENAMED = frozenset({"messages", "system", "stop_sequences", "tools", "tool_choice", "metadata", "thinking"})
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})


def chat_of_messages(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request's body; members nobody knows go along, for the engine to judge."""
    chat = {name: value for name, value in body.items() if name not in _RENAMED}
    chat["messages"] = _conversation(body)
    stops = body.get("stop_sequences")
    if stops:
        if len(stops) > MAX_STOPS:
            raise unsupported("stop_sequences", f"at most {MAX_STOPS} are possible")
        chat["stop"] = stops
    if body.get("tools"):
        chat["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body["tools"])]
    if "tool_choice" in body:
        chat.update(_tool_choice(body["tool_choice"]))
    user = body.get("metadata", {}).get("user_id")
    if user is not None:
        chat["user"] = string_at(body["metadata"], "user_id", "metadata")
    if body.get("thinking", {}).get("type", "disabled") != "disabled":
        raise unsupported("thinking")
    return chat


def _conversation(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    system = body.get("system")
    if system:
        messages.append({"role": "system", "content": _plain_text(system, "system")})
    for index, message in enumerate(body["messages"]):
        where = f"messages[{index}].content"
        content = message["content"]
        if isinstance(content, str):
            messages.append({"role": message["role"], "content": content})
        elif message["role"] == "assistant":
            messages.append(_assistant(content, where))
        elif message["role"] == "system":
            messages.append({"role": "system", "content": _plain_text(content, where)})
        else:
            messages.extend(_user(content, where))
    return messages


def _user(blocks: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own, and answer the turn before: they come first."""
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for position, block in enumerate(blocks):
        here = f"{where}[{position}]"
        kind = block.get("type")
        if kind == "text":
            parts.append({"type": "text", "text": string_at(block, "text", here)})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": _image_url(block, here)}})
        elif kind == "tool_result":
            content = _plain_text(block.get("content") or "", f"{here}.content")
            call_id = string_at(block, "tool_use_id", here)
            results.append({"role": "tool", "tool_call_id": call_id, "content": content})
        else:
            raise unsupported(here, "such a content block is not possible here")
    if parts or not results:
        results.append({"role": "user", "content": _shortest(parts)})
    return results


def _assistant(blocks: list[dict[str, Any]], where: str) -> dict[str, Any]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for position, block in enumerate(blocks):
        here = f"{where}[{position}]"
        kind = block.get("type")
        if kind == "text":
            texts.append(string_at(block, "text", here))
        elif kind == "tool_use":
            arguments = orjson.dumps(block.get("input") or {}).decode()
            function = {"name": string_at(block, "name", here), "arguments": arguments}
            calls.append({"id": string_at(block, "id", here), "type": "function", "function": function})
        elif kind not in _THOUGHTS:
            raise unsupported(here, "such a content block is not possible here")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if calls:
        message["tool_calls"] = calls
    return message


def _plain_text(content: Any, where: str) -> str:
    """Of a string or of text blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_form(where, "a string or an array of text blocks")
    texts = []
    for position, block in enumerate(content):
        here = f"{where}[{position}]"
        if not isinstance(block, Mapping) or block.get("type") != "text":
            raise unsupported(here, "only text is possible here")
        texts.append(string_at(block, "text", here))
    return "\n".join(texts)


def _shortest(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _image_url(block: Mapping[str, Any], where: str) -> str:
    source = block.get("source")
    if not isinstance(source, Mapping):
        raise bad_form(f"{where}.source", "an object")
    if source.get("type") == "url":
        return string_at(source, "url", f"{where}.source")
    if source.get("type") == "base64":
        data = string_at(source, "data", f"{where}.source")
        return f"data:{string_at(source, 'media_type', f'{where}.source')};base64,{data}"
    raise unsupported(f"{where}.source.type", "such a source is not possible here")


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        raise unsupported(f"{where}.type", "only tools of the client's own are possible")
    function = {"name": string_at(tool, "name", where)}
    for name, chat_name in (("description", "description"), ("input_schema", "parameters")):
        if name in tool:
            function[chat_name] = tool[name]
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    if kind == "tool":
        name = string_at(choice, "name", "tool_choice")
        chat: dict[str, Any] = {"tool_choice": {"type": "function", "function": {"name": name}}}
    elif kind in ("auto", "any", "none"):
        chat = {"tool_choice": "required" if kind == "any" else kind}
    else:
        raise bad_form("tool_choice.type", "'auto', 'any', 'tool' or 'none'")
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    return chat
