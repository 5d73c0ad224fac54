"""A parsed body, validated and read: the step from a JSON object to what the runtime schedules by."""

from __future__ import annotations

from typing import Any, Final

import orjson

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.wire.messages import TEXT_ONLY, read_messages, utf8_length
from llm_runtime.wire.ordinary import ordinary_request
from llm_runtime.wire.parsed_request import TIER_PRIORITY, ParsedRequest
from llm_runtime.wire.schemas.chat import ChatRequest, Tool
from llm_runtime.wire.schemas.common import GenerationRequest
from llm_runtime.wire.schemas.completions import CompletionsRequest
from llm_runtime.wire.schemas.translate import missing, path, validate

_OURS: Final = frozenset({"priority", "service_tier", "stream", "stream_options", "max_completion_tokens"})
"""Never part of the body that goes on: read here, or the engine adapter's to set."""

_CHAT_FIELDS: Final = frozenset(ChatRequest.model_fields)
_COMPLETIONS_FIELDS: Final = frozenset(CompletionsRequest.model_fields)


def parse_chat(body: dict[str, Any], accept_parts: frozenset[str] | None = TEXT_ONLY) -> ParsedRequest:
    """Reads a chat completion request. `body` is not changed.

    accept_parts: content part types besides text that are let through; None lets all through, for a
    later `messages.refuse_parts` once the model's engine is known. Raises InvalidRequest.
    """
    ordinary = ordinary_request(body, chat=True)
    return validated_chat(body, accept_parts) if ordinary is None else ordinary


def parse_any_chat(body: dict[str, Any]) -> ParsedRequest:
    """`parse_chat` of whatever parts. Raises InvalidRequest."""
    ordinary = ordinary_request(body, chat=True)
    return validated_chat(body, None) if ordinary is None else ordinary


def parse_completions(body: dict[str, Any]) -> ParsedRequest:
    """Reads a legacy completion request. `body` is not changed. Raises InvalidRequest."""
    ordinary = ordinary_request(body, chat=False)
    return validated_completions(body) if ordinary is None else ordinary


def validated_chat(body: dict[str, Any], accept_parts: frozenset[str] | None) -> ParsedRequest:
    """As `parse_chat`, by the schema, whatever the request is like."""
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
    present["messages"] = conversation.messages
    cap = request.max_completion_tokens
    return _read(
        request,
        _body_of(present, request.max_tokens if cap is None else cap),
        _CHAT_FIELDS,
        _Prompt(1, prompt_bytes, None, conversation.part_types),
        num_sequences=request.n or 1,
        newer_cap=cap is not None,
    )


def validated_completions(body: dict[str, Any]) -> ParsedRequest:
    """As `parse_completions`, by the schema, whatever the request is like."""
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


class _Prompt:
    __slots__ = ("num_bytes", "num_prompts", "num_tokens", "part_types")

    def __init__(
        self,
        num_prompts: int,
        num_bytes: int,
        num_tokens: int | None,
        part_types: frozenset[str] = frozenset(),
    ) -> None:
        self.num_prompts: Final = num_prompts
        self.num_bytes: Final = num_bytes
        self.num_tokens: Final = num_tokens
        self.part_types: Final = part_types


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
    newer_cap: bool = False,
) -> ParsedRequest:
    tier = request.service_tier
    priority = request.priority
    if priority is None and tier is not None:
        priority = TIER_PRIORITY[tier]
    options = request.stream_options
    cap_field = "max_completion_tokens" if newer_cap else "max_tokens" if "max_tokens" in body else None
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
        cap_field=cap_field,
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
