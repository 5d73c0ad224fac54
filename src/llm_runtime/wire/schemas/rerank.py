"""`POST /v1/rerank`, as Jina and Cohere have it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Strict

from llm_runtime.wire.schemas.common import Bool, NonEmptyStr, SharedFields, Str

Document = Str | dict[Str, Any]


class RerankRequest(SharedFields):
    query: NonEmptyStr | dict[Str, Any]
    documents: Annotated[list[Document], Field(min_length=1, fail_fast=True)]

    top_n: Annotated[int, Strict(), Field(ge=1, le=2**31 - 1)] | None = None
    return_documents: Bool | None = None
