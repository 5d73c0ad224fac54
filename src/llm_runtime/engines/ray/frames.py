"""What travels between an engine's replica and the ingress: requests one way, frames the other.

A frame is what the engine's stream gave in one wake-up, with the counts as they were then, so that a
request that ends early is charged for exactly what its frames say. Bytes of the answer are in the
client's dialect already and are never looked at here. Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import orjson

from llm_runtime.core import errors
from llm_runtime.core.errors import BackendError, LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest, TimeLimits
from llm_runtime.engines.base import Finished

_HAS_TOKEN, _END, _ERROR, _ESTIMATED, _FAILED = 1, 2, 4, 8, 16
_HEAD = struct.Struct("<BIII")
_TAIL = struct.Struct("<dB")
"""Of the last frame: seconds to the first token, or below 0; length of the finish reason."""


@dataclass(slots=True)
class Frame:
    """data: for the client. usage: so far. finished: only of the last one. first_token_s: since the
    replica took the request, where the last frame knows it."""

    data: bytes
    has_token: bool
    usage: Usage
    finished: Finished | None = None
    first_token_s: float | None = None
    error: LLMRuntimeError | None = None


def pack(data: bytes, *, has_token: bool, usage: Usage) -> bytes:
    flags = (_HAS_TOKEN if has_token else 0) | (_ESTIMATED if usage.estimated else 0)
    return _head(flags, usage) + data


def pack_end(data: bytes, finished: Finished, *, has_token: bool, first_token_s: float | None) -> bytes:
    """The last frame of an answer that is whole; `data` may be empty."""
    flags = _END | (_HAS_TOKEN if has_token else 0) | (_FAILED if finished.failed else 0)
    flags |= _ESTIMATED if finished.usage.estimated else 0
    reason = finished.reason.encode()[:255]
    tail = _TAIL.pack(-1.0 if first_token_s is None else first_token_s, len(reason))
    return b"".join((_head(flags, finished.usage), tail, reason, data))


def pack_error(error: LLMRuntimeError, usage: Usage) -> bytes:
    """The last frame of a request that failed, or that the engine refused."""
    told = {
        "type": type(error).__name__,
        "message": error.message,
        "reason": error.reason,
        "param": error.param,
        "retry_after_s": error.retry_after_s,
    }
    return _head(_ERROR | (_ESTIMATED if usage.estimated else 0), usage) + orjson.dumps(told)


def unpack(frame: bytes) -> Frame:
    flags, prompt, completion, cached = _HEAD.unpack_from(frame)
    usage = Usage(prompt, completion, cached, estimated=bool(flags & _ESTIMATED))
    has_token = bool(flags & _HAS_TOKEN)
    if not flags & (_END | _ERROR):
        return Frame(frame[_HEAD.size :], has_token, usage)
    if flags & _ERROR:
        return Frame(b"", False, usage, error=_error(orjson.loads(frame[_HEAD.size :])))
    first_token_s, length = _TAIL.unpack_from(frame, _HEAD.size)
    begin = _HEAD.size + _TAIL.size
    finished = Finished(usage, frame[begin : begin + length].decode(), bool(flags & _FAILED))
    return Frame(
        frame[begin + length :],
        has_token,
        usage,
        finished,
        None if first_token_s < 0 else first_token_s,
    )


def _head(flags: int, usage: Usage) -> bytes:
    return _HEAD.pack(flags, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)


def _error(told: dict[str, Any]) -> LLMRuntimeError:
    kind = getattr(errors, told["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, LLMRuntimeError)):
        kind = BackendError
    return kind(
        told["message"], reason=told["reason"], param=told["param"], retry_after_s=told["retry_after_s"]
    )


def pack_request(request: RuntimeRequest) -> bytes:
    """Everything an engine may ask of a request. Limits of time stay here: the ingress measures them."""
    return orjson.dumps(
        {
            "id": request.id,
            "model": request.model,
            "kind": request.kind.value,
            "body": request.body,
            "created": request.created,
            "tenant": request.tenant,
            "priority": request.priority,
            "stream": request.stream,
            "include_usage": request.include_usage,
            "num_slots": request.num_slots,
            "num_prompt_tokens": request.num_prompt_tokens,
            "num_prompt_bytes": request.num_prompt_bytes,
            "max_tokens": request.max_tokens,
            "cap_field": request.cap_field,
            "via": None if request.via is None else request.via.value,
        }
    )


def unpack_request(data: bytes, now: float) -> RuntimeRequest:
    """now: of this machine, whose clock is not the sender's."""
    fields = orjson.loads(data)
    fields["kind"] = EndpointKind(fields["kind"])
    fields["via"] = None if fields["via"] is None else EndpointKind(fields["via"])
    return RuntimeRequest(**fields, arrived_at=now, limits=TimeLimits(None, None, None))
