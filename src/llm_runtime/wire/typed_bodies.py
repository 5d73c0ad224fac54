"""A whole answer of the Responses or Messages family as a stream of its events: for an engine that ignored
`stream`. The client that asked for events gets those that a stream of the same answer has, all at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from llm_runtime.core.errors import BackendProtocolError
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.bodies import PlainReply
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.plain_bodies import plain_reply
from llm_runtime.wire.typed_events import framed

_ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})
_PARTS = {"output_text": ("output_text", "text"), "refusal": ("refusal", "refusal")}

Events = Iterator[dict[str, Any]]


def typed_stream_of_body(raw: bytes, options: RelayOptions) -> PlainReply:
    """Raises what `plain_reply` raises, and BackendProtocolError for an answer that is not finished."""
    reply = plain_reply(raw, options)
    body = orjson.loads(reply.raw)
    events = _response(body) if options.kind is EndpointKind.RESPONSES else _message(body)
    stream = b"".join(map(framed, events))
    return PlainReply(stream, reply.usage, reply.finish_reason, reply.failed)


def _response(body: dict[str, Any]) -> Events:
    status = body.get("status")
    if status not in _ENDED:
        raise BackendProtocolError("The engine's answer is not finished.")
    begun = {**body, "status": "in_progress", "output": [], "usage": None, "error": None}
    events = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *(event for index, item in enumerate(body["output"]) for event in _item(index, item)),
        {"type": f"response.{status}", "response": body},
    ]
    for number, event in enumerate(events):
        yield {"type": event["type"], "sequence_number": number, **event}


def _item(index: int, item: Any) -> Events:
    if not isinstance(item, dict):
        raise BackendProtocolError("The engine's answer has an item that is no object.")
    kind = item.get("type")
    place = {"item_id": item.get("id"), "output_index": index}
    begun = dict(item)
    if kind == "message":
        begun |= {"content": [], "status": "in_progress"}
    elif kind == "function_call":
        begun |= {"arguments": "", "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    if kind == "message":
        for number, part in enumerate(_objects(item.get("content"))):
            yield from _part({**place, "content_index": number}, part)
    elif kind == "function_call":
        arguments = item.get("arguments")
        name = "response.function_call_arguments"
        yield {"type": f"{name}.delta", **place, "delta": arguments}
        yield {"type": f"{name}.done", **place, "name": item.get("name"), "arguments": arguments}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part(place: dict[str, Any], part: dict[str, Any]) -> Events:
    name, member = _PARTS.get(str(part.get("type")), ("", ""))
    begun = {**part, member: ""} if name else part
    yield {"type": "response.content_part.added", **place, "part": begun}
    if name:
        logprobs = {"logprobs": part.get("logprobs") or []} if name == "output_text" else {}
        yield {"type": f"response.{name}.delta", **place, "delta": part.get(member), **logprobs}
        yield {"type": f"response.{name}.done", **place, member: part.get(member), **logprobs}
    yield {"type": "response.content_part.done", **place, "part": part}


def _message(body: dict[str, Any]) -> Events:
    given = body.get("usage")
    usage = given if isinstance(given, dict) else {"input_tokens": 0, "output_tokens": 0}
    begun = {**body, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**begun, "usage": {**usage, "output_tokens": 0}}}
    for index, block in enumerate(_objects(body["content"])):
        start, deltas = _block(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": body.get("stop_reason"), "stop_sequence": body.get("stop_sequence")}
    yield {"type": "message_delta", "delta": stop, "usage": usage}
    yield {"type": "message_stop"}


def _block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """As a stream begins it, and what is added to it. Blocks that do not grow come whole."""
    kind = block.get("type")
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block.get("text")}]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": block.get("thinking")}]
        if block.get("signature"):
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    if kind == "tool_use":
        arguments = orjson.dumps(block.get("input") or {}).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
    return block, []


def _objects(items: Any) -> list[dict[str, Any]]:
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BackendProtocolError("The engine's answer has content that is no list of objects.")
    return items
