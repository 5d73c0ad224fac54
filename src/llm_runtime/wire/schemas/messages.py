"""`POST /v1/messages`, Anthropic's API: only what the runtime must know; the rest is the engine's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, Strict

from llm_runtime.wire.schemas.common import Bool, Probability, SharedFields, Str, Temperature, TokenCount

Blocks = Annotated[list[dict[Str, Any]], Field(fail_fast=True)]


class MessagesMessage(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: Str | Blocks


class MessagesRequest(SharedFields):
    """service_tier: the values of this API, which know no priorities."""

    messages: Annotated[list[MessagesMessage], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[TokenCount, Field(ge=1)]

    metadata: dict[Str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    stop_sequences: list[Str] | None = None
    stream: Bool | None = None
    system: Str | Blocks | None = None
    temperature: Temperature | None = None
    thinking: dict[Str, Any] | None = None
    tools: Annotated[list[dict[Str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: dict[Str, Any] | None = None
    top_k: Annotated[int, Strict(), Field(ge=-1, le=2**31 - 1)] | None = None
    top_p: Probability | None = None
