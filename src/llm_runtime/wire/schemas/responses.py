"""`POST /v1/responses`: only what the runtime itself must know; the rest is the engine's to judge."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Strict

from llm_runtime.wire.schemas.common import (
    Bool,
    Metadata,
    Probability,
    ServiceTier,
    SharedFields,
    Str,
    Temperature,
    TokenCount,
)


class ResponsesRequest(SharedFields):
    input: Str | Annotated[list[dict[Str, Any]], Field(min_length=1, fail_fast=True)] | None = None

    instructions: Str | None = None
    max_output_tokens: Annotated[TokenCount, Field(ge=1)] | None = None
    metadata: Metadata | None = None
    parallel_tool_calls: Bool | None = None
    previous_response_id: Str | None = None
    prompt: dict[Str, Any] | None = None
    reasoning: dict[Str, Any] | None = None
    service_tier: ServiceTier | None = None
    store: Bool | None = None
    stream: Bool | None = None
    temperature: Temperature | None = None
    text: dict[Str, Any] | None = None
    tools: Annotated[list[dict[Str, Any]], Field(fail_fast=True)] | None = None
    top_logprobs: Annotated[int, Strict(), Field(ge=0, le=20)] | None = None
    top_p: Probability | None = None
