"""`POST /v1/embeddings`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Strict, Tag

from llm_runtime.wire.schemas.common import NonEmptyStr, SharedFields, Str
from llm_runtime.wire.schemas.completions import TokenIds, prompt_form

MAX_INPUTS = 2048

Input = Annotated[
    Annotated[str, Strict(), Field(min_length=1), Tag("text")]
    | Annotated[list[NonEmptyStr], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("texts")]
    | Annotated[TokenIds, Tag("tokens")]
    | Annotated[
        list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("token_lists")
    ],
    Discriminator(prompt_form),
]


class EmbeddingsRequest(SharedFields):
    input: Input

    dimensions: Annotated[int, Strict(), Field(ge=1, le=2**31 - 1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: Str | None = None
