"""`POST /tokenize`, as vLLM has it: a text, or a conversation put through the chat template."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from llm_runtime.wire.schemas.chat import Message
from llm_runtime.wire.schemas.common import Bool, SharedFields, Str


class TokenizeRequest(SharedFields):
    prompt: Str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None

    add_generation_prompt: Bool | None = None
    add_special_tokens: Bool | None = None
    return_token_strs: Bool | None = None
    tools: Annotated[list[dict[Str, Any]], Field(fail_fast=True)] | None = None
