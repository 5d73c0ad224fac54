"""A parsed body, validated and read: the step from a JSON object to what the runtime schedules by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.core.quick import quick
from llm_runtime.core.request import DEFAULT_PRIORITY
from llm_runtime.wire.messages import TEXT_ONLY, read_messages, utf8_length
from llm_runtime.wire.schemas.chat import ChatRequest, Tool
from llm_runtime.wire.schemas.common import GenerationRequest
from llm_runtime.wire.schemas.completions import CompletionsRequest
from llm_runtime.wire.schemas.translate import missing, path, validate

TIER_PRIORITY = {
    "priority": 2,
    "fast": 2,
    "auto": DEFAULT_PRIORITY,
    "default": DEFAULT_PRIORITY,
    "scale": DEFAULT_PRIORITY,
    "flex": 8,
}

_OURS = frozenset({"priority", "service_tier", "stream", "stream_options", "max_completion_tokens"})
"""Never part of the body that goes on: read here, or the engine adapter's to set."""

_CHAT_FIELDS = frozenset(ChatRequest.model_fields)
_COMPLETIONS_FIELDS = frozenset(CompletionsRequest.model_fields)


@quick
@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """What a generation request asks for.

    num_slots: engine sequences it needs at once, n (or best_of, if larger) x num_prompts.
    max_tokens: cap of one sequence, >= 1; `max_completion_tokens` wins over `max_tokens`, and 0
        counts as 1, as no engine generates nothing. None: the client names none.
    cap_field: the field the cap was named in; some upstreams know only the newer one.
    priority: 0 the highest ... 9; `priority` wins over `service_tier`; None: the client names none.
    body: the client's object without nulls, without our own fields (`priority`, `service_tier`,
        `stream`, `stream_options`), with one `max_tokens` at most.
    part_types: of message content arrays.
    prompt_bytes: UTF-8 bytes of text the prompt is made of, tool definitions included.
    prompt_tokens_exact: known only where the prompt came as token ids.
    extras: members of `body` that no schema knows; engines refuse or forward them by allow-list.
    """

    model: str
    stream: bool
    include_usage: bool
    num_slots: int
    num_prompts: int
    max_tokens: int | None
    priority: int | None
    service_tier: str | None
    body: dict[str, Any]
    part_types: frozenset[str]
    prompt_bytes: int
    prompt_tokens_exact: int | None
    extras: Mapping[str, Any]
    cap_field: str | None = None


def parse_chat(body: dict[str, Any], accept_parts: frozenset[str] | None = TEXT_ONLY) -> ParsedRequest:
    """Reads a chat completion request. `body` is not changed.

    accept_parts: content part types besides text that are let through; None lets all through, for a
    later `messages.refuse_parts` once the model's engine is known. Raises InvalidRequest.
    """
    present = {key: value for key, value in body.items() if value is not None}
    request = validate(ChatRequest, present)
    _check_stream_options(request)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest(
            "'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs", reason="invalid_value"
        )
    conversation = read_messages(present["messages"], accept_parts)
    prompt_bytes = conversation.text_bytes
    if request.tools is not None:
        _check_tools(request.tools)
        prompt_bytes += len(orjson.dumps(present["tools"]))
    _check_response_format(request)
    cap = request.max_completion_tokens
    parsed = _read(
        request,
        _body_of({**present, "messages": conversation.messages}, request.max_tokens if cap is None else cap),
        _CHAT_FIELDS,
        _Prompt(1, prompt_bytes, None, conversation.part_types),
        num_sequences=request.n or 1,
    )
    return parsed if cap is None else replace(parsed, cap_field="max_completion_tokens")


def parse_completions(body: dict[str, Any]) -> ParsedRequest:
    """Reads a legacy completion request. `body` is not changed. Raises InvalidRequest."""
    present = {key: value for key, value in body.items() if value is not None}
    request = validate(CompletionsRequest, present)
    _check_stream_options(request)
    num_sequences = max(request.n or 1, request.best_of or 1)
    if request.stream and num_sequences > (request.n or 1):
        raise InvalidRequest(
            "'best_of' larger than 'n' cannot be streamed.", param="best_of", reason="invalid_value"
        )
    return _read(
        request,
        _body_of(present, request.max_tokens),
        _COMPLETIONS_FIELDS,
        _measure_prompt(request.prompt),
        num_sequences=num_sequences,
    )


@quick
@dataclass(frozen=True, slots=True)
class _Prompt:
    num_prompts: int
    num_bytes: int
    num_tokens: int | None
    part_types: frozenset[str] = frozenset()


def _body_of(present: dict[str, Any], max_tokens: int | None) -> dict[str, Any]:
    body = {key: value for key, value in present.items() if key not in _OURS}
    if max_tokens is not None:
        body["max_tokens"] = max(1, max_tokens)
    if body.get("stop") == []:
        del body["stop"]
    return body


def _read(
    request: GenerationRequest,
    body: dict[str, Any],
    known: frozenset[str],
    prompt: _Prompt,
    *,
    num_sequences: int,
) -> ParsedRequest:
    tier = request.service_tier
    priority = request.priority
    if priority is None and tier is not None:
        priority = TIER_PRIORITY[tier]
    options = request.stream_options
    return ParsedRequest(
        model=request.model,
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        num_slots=num_sequences * prompt.num_prompts,
        num_prompts=prompt.num_prompts,
        max_tokens=body.get("max_tokens"),
        priority=priority,
        service_tier=tier,
        body=body,
        part_types=prompt.part_types,
        prompt_bytes=prompt.num_bytes,
        prompt_tokens_exact=prompt.num_tokens,
        extras={key: body[key] for key in body.keys() - known},
        cap_field="max_tokens" if "max_tokens" in body else None,
    )


def _check_stream_options(request: GenerationRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "'stream_options' is only allowed when 'stream' is true.",
            param="stream_options",
            reason="invalid_value",
        )


def _check_tools(tools: list[Tool]) -> None:
    for index, tool in enumerate(tools):
        if getattr(tool, tool.type) is None:
            raise missing(path("tools", index, tool.type))


def _check_response_format(request: ChatRequest) -> None:
    wanted = request.response_format
    if wanted is not None and wanted.type == "json_schema" and wanted.json_schema is None:
        raise missing("response_format.json_schema")


def _measure_prompt(prompt: str | list[Any]) -> _Prompt:
    if isinstance(prompt, str):
        return _Prompt(1, utf8_length(prompt), None)
    if isinstance(prompt[0], str):
        return _Prompt(len(prompt), sum(map(utf8_length, prompt)), None)
    if isinstance(prompt[0], int):
        return _Prompt(1, 0, len(prompt))
    return _Prompt(len(prompt), 0, sum(map(len, prompt)))
