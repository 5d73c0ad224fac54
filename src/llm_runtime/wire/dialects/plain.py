"""Families without streams: embeddings, rerank, tokenize. Only their errors have a shape here."""

from __future__ import annotations

from typing import Any

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.errors import error_body, error_event
from llm_runtime.wire.sse import KEEP_ALIVE
from llm_runtime.wire.usage import count_of


class PlainDialect:
    keep_alive = KEEP_ALIVE

    def __init__(self, kind: EndpointKind) -> None:
        self.kind = kind

    def has_token(self, event: dict[str, Any]) -> bool:
        return False

    def usage(self, event: dict[str, Any]) -> Usage | None:
        """Of a body: prompt tokens, under whichever name."""
        if self.kind is EndpointKind.TOKENIZE:
            return Usage()  # what it counts was not computed with
        usage = event.get("usage")
        if not isinstance(usage, dict):
            return None
        for name in ("prompt_tokens", "total_tokens"):
            if (tokens := count_of(usage.get(name))) is not None:
                return Usage(tokens)
        return None

    def error_event(self, error: dict[str, Any]) -> bytes:
        return error_event(error)

    def error_body(self, error: dict[str, Any]) -> bytes:
        return error_body(error)
