"""A chat's answer as a response of the Responses API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.facades.responses_in import chat_of_response
from llm_runtime.wire.facades.segments import (
    Change,
    ChatAnswer,
    ChatReader,
    Closed,
    Opened,
    Segment,
    read_reply,
)
from llm_runtime.wire.typed_events import framed

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ID_PREFIXES = {"tool": "fc", "reasoning": "rs"}
_DELTAS = {"text": "output_text", "refusal": "refusal", "reasoning": "reasoning_text"}


class ResponsesFacade:
    """wall: Unix seconds, for when a response was completed."""

    kind = EndpointKind.RESPONSES

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall

    def chat_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return chat_of_response(body)

    def writer(self, body: Mapping[str, Any]) -> ResponsesWriter:
        return ResponsesWriter(body, self._wall)

    def reply(self, raw: bytes, body: Mapping[str, Any]) -> bytes:
        answer = read_reply(raw)
        return orjson.dumps(_finished(answer, body, self._wall()))


class ResponsesWriter:
    """`base.EventWriter`."""

    def __init__(self, body: Mapping[str, Any], wall: Callable[[], float]) -> None:
        self._body = body
        self._wall = wall
        self._reader = ChatReader()
        self._begun = False
        self._num_events = 0

    def feed(self, data: bytes) -> bytes:
        out: list[bytes] = []
        changes = self._reader.feed(data)
        answer = self._reader.answer
        if not self._begun and self._reader.started:
            self._begun = True
            response = _response(answer, self._body, "in_progress")
            out += [self._event("response.created", response=response)]
            out += [self._event("response.in_progress", response=response)]
        for change in changes:
            out.extend(self._event(**event) for event in _events(change, answer))
        if self._reader.done:
            response = _finished(answer, self._body, self._wall())
            out.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(out)

    def _event(self, type: str, **members: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return framed({"type": type, "sequence_number": number, **members})


def _finished(answer: ChatAnswer, body: Mapping[str, Any], wall_now: float) -> dict[str, Any]:
    reason = _INCOMPLETE.get(answer.finish_reason or "")
    response = _response(answer, body, "incomplete" if reason else "completed")
    response["output"] = [
        _item(segment, _status(segment, answer), stem=answer.stem) for segment in answer.segments
    ]
    if reason:
        response["incomplete_details"] = {"reason": reason}
    else:
        response["completed_at"] = int(wall_now)
    prompt, completion = answer.count("prompt_tokens"), answer.count("completion_tokens")
    cached = answer.count("prompt_tokens_details", "cached_tokens")
    reasoning = answer.count("completion_tokens_details", "reasoning_tokens")
    response["usage"] = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + completion,
    }
    return response


def _response(answer: ChatAnswer, body: Mapping[str, Any], status: str) -> dict[str, Any]:
    """Every member that clients require; what was asked is told back, or its default."""
    reasoning = body.get("reasoning") or {}
    text = body.get("text") or {}
    return {
        "id": f"resp_{answer.stem}",
        "object": "response",
        "created_at": answer.created,
        "completed_at": None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "model": answer.model,
        "output": [],
        "usage": None,
        "background": False,
        "frequency_penalty": 0,
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": None,
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "presence_penalty": 0,
        "previous_response_id": None,
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": body.get("temperature", 1),
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": [_tool(tool) for tool in body.get("tools") or ()],
        "top_logprobs": 0,
        "top_p": body.get("top_p", 1),
        "truncation": "disabled",
        "user": body.get("user"),
    }


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": None, **tool}


def _status(segment: Segment, answer: ChatAnswer) -> str:
    is_cut = answer.finish_reason in _INCOMPLETE and segment is answer.segments[-1]
    return "incomplete" if is_cut else "completed"


def _item_id(segment: Segment, stem: str) -> str:
    return f"{_ID_PREFIXES.get(segment.kind, 'msg')}_{stem}_{segment.index}"


def _item(segment: Segment, status: str, *, stem: str, whole: bool = True) -> dict[str, Any]:
    """whole: with its content; else as a stream begins it."""
    item_id = _item_id(segment, stem)
    if segment.kind == "tool":
        return {
            "id": item_id,
            "type": "function_call",
            "status": status,
            "call_id": segment.call_id,
            "name": segment.name,
            "arguments": segment.text if whole else "",
        }
    content = [_part(segment, segment.text)] if whole else []
    if segment.kind == "reasoning":
        return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": content}
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def _part(segment: Segment, text: str) -> dict[str, Any]:
    if segment.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    if segment.kind == "refusal":
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _events(change: Change, answer: ChatAnswer) -> Iterator[dict[str, Any]]:
    segment = change.segment
    place = {"item_id": _item_id(segment, answer.stem), "output_index": segment.index}
    if isinstance(change, Opened):
        item = _item(segment, "in_progress", stem=answer.stem, whole=False)
        yield {"type": "response.output_item.added", "output_index": segment.index, "item": item}
        if segment.kind != "tool":
            yield {
                "type": "response.content_part.added",
                **place,
                "content_index": 0,
                "part": _part(segment, ""),
            }
    elif isinstance(change, Closed):
        yield from _closing(segment, place)
        item = _item(segment, _status(segment, answer), stem=answer.stem)
        yield {"type": "response.output_item.done", "output_index": segment.index, "item": item}
    elif segment.kind == "tool":
        yield {"type": "response.function_call_arguments.delta", **place, "delta": change.text}
    else:
        yield {
            "type": f"response.{_DELTAS[segment.kind]}.delta",
            **place,
            "content_index": 0,
            "delta": change.text,
            **({"logprobs": []} if segment.kind == "text" else {}),
        }


def _closing(segment: Segment, place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    text = segment.text
    if segment.kind == "tool":
        name = "response.function_call_arguments.done"
        yield {"type": name, **place, "name": segment.name, "arguments": text}
        return
    said: dict[str, Any] = {"refusal": text} if segment.kind == "refusal" else {"text": text}
    if segment.kind == "text":
        said["logprobs"] = []
    yield {"type": f"response.{_DELTAS[segment.kind]}.done", **place, "content_index": 0, **said}
    part = _part(segment, text)
    yield {"type": "response.content_part.done", **place, "content_index": 0, "part": part}
