"""`POST /v1/chat/completions`.

The content of a message is typed for the documentation and checked in `wire/messages.py`, which
knows which part types an engine takes and can name the very place of a fault.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SkipValidation, Strict

from llm_runtime.wire.schemas.common import (
    Bool,
    GenerationRequest,
    Metadata,
    NonEmptyStr,
    Str,
    TokenCount,
)

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class TextPart(BaseModel):
    type: Literal["text"]
    text: Str


class FunctionCall(BaseModel):
    name: NonEmptyStr
    arguments: Str


class CustomCall(BaseModel):
    name: NonEmptyStr
    input: Str


class ToolCall(BaseModel):
    """A call the assistant made earlier in the conversation."""

    id: Str | None = None
    type: Literal["function", "custom"] | None = None
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class Message(BaseModel):
    role: Role
    content: SkipValidation[str | list[TextPart | dict[str, Any]] | None] = None
    name: Str | None = None
    tool_call_id: Str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    refusal: Str | None = None
    audio: dict[Str, Any] | None = None


class FunctionDefinition(BaseModel):
    name: NonEmptyStr
    description: Str | None = None
    parameters: dict[str, Any] | None = None
    strict: Bool | None = None


class CustomTool(BaseModel):
    name: NonEmptyStr
    description: Str | None = None
    format: dict[str, Any] | None = None


class Tool(BaseModel):
    type: Literal["function", "custom"]
    function: FunctionDefinition | None = None
    custom: CustomTool | None = None


class ToolChoiceObject(BaseModel):
    type: Literal["function", "custom", "allowed_tools"]


class FunctionName(BaseModel):
    name: NonEmptyStr


class JsonSchemaFormat(BaseModel):
    name: NonEmptyStr
    description: Str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: Bool | None = None


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class AudioOutput(BaseModel):
    voice: Str | dict[str, Any]
    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]


class Prediction(BaseModel):
    type: Literal["content"]
    content: Str | Annotated[list[TextPart], Field(min_length=1)]


class ChatRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]

    audio: AudioOutput | None = None
    function_call: Literal["none", "auto"] | FunctionName | None = None
    functions: Annotated[list[FunctionDefinition], Field(min_length=1, fail_fast=True)] | None = None
    logprobs: Bool | None = None
    max_completion_tokens: TokenCount | None = None
    metadata: Metadata | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    moderation: dict[str, Any] | None = None
    parallel_tool_calls: Bool | None = None
    prediction: Prediction | None = None
    prompt_cache_key: Str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    response_format: ResponseFormat | None = None
    safety_identifier: Annotated[str, Strict(), Field(max_length=128)] | None = None
    store: Bool | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    top_logprobs: Annotated[int, Strict(), Field(ge=0, le=20)] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    web_search_options: dict[str, Any] | None = None
