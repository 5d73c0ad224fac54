"""`POST /v1/completions`, the legacy endpoint: plain text or token ids in, text out."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Strict, Tag

from llm_runtime.wire.schemas.common import Bool, GenerationRequest, Str, TokenId

TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


def prompt_form(prompt: Any) -> str | None:
    """Which form a prompt has, by its first element, so that errors speak of that form only."""
    if isinstance(prompt, str):
        return "text"
    if not isinstance(prompt, list):
        return None
    first = prompt[0] if prompt else ""
    if isinstance(first, list):
        return "token_lists"
    return "texts" if isinstance(first, str) else "tokens"


Prompt = Annotated[
    Annotated[str, Strict(), Tag("text")]
    | Annotated[list[Str], Field(min_length=1, fail_fast=True), Tag("texts")]
    | Annotated[TokenIds, Tag("tokens")]
    | Annotated[list[TokenIds], Field(min_length=1, fail_fast=True), Tag("token_lists")],
    Discriminator(prompt_form),
]


class CompletionsRequest(GenerationRequest):
    prompt: Prompt

    best_of: Annotated[int, Strict(), Field(ge=0, le=20)] | None = None
    echo: Bool | None = None
    logprobs: Annotated[int, Strict(), Field(ge=0, le=5)] | None = None
    suffix: Str | None = None
