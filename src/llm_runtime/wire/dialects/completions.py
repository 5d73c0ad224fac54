"""The legacy completions dialect."""

from __future__ import annotations

from typing import Any

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.errors import error_body, error_event
from llm_runtime.wire.sse import KEEP_ALIVE
from llm_runtime.wire.usage import read_usage


class CompletionsDialect:
    kind = EndpointKind.COMPLETIONS
    keep_alive = KEEP_ALIVE

    def has_token(self, event: dict[str, Any]) -> bool:
        return any(choice.get("text") for choice in event.get("choices") or ())

    def usage(self, event: dict[str, Any]) -> Usage | None:
        return read_usage(event.get("usage"))

    def error_event(self, error: dict[str, Any]) -> bytes:
        return error_event(error)

    def error_body(self, error: dict[str, Any]) -> bytes:
        return error_body(error)
