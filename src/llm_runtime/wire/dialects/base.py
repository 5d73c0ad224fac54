"""The `Dialect` seam: what differs between the API families once their events are bytes."""

from __future__ import annotations

from typing import Any, Protocol

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind

FAILED = "failed"
"""The finish reason of an answer that says itself that it failed."""


class Dialect(Protocol):
    """Stateless; one instance per API family, shared by all requests."""

    kind: EndpointKind

    keep_alive: bytes
    """A whole SSE comment event: counts neither as a token nor as an answer."""

    def has_token(self, event: dict[str, Any]) -> bool:
        """Whether a parsed event carries content, reasoning or tool-call tokens."""
        ...

    def usage(self, event: dict[str, Any]) -> Usage | None:
        """The usage of a parsed event or plain body; None if it has none."""
        ...

    def error_event(self, error: dict[str, Any]) -> bytes:
        """A stream's last event after a failure: `error` is the OpenAI error object (four keys).
        No end marker follows: a failed stream must not look finished."""
        ...

    def error_body(self, error: dict[str, Any]) -> bytes: ...


class TypedDialect(Dialect, Protocol):
    """A family whose events bear a `type` and whose stream ends with an event of its own."""

    def is_end(self, event: dict[str, Any]) -> bool: ...

    def finish_reason(self, event: dict[str, Any]) -> str | None:
        """Why the answer ended, of an event or plain body that says so; FAILED if it failed."""
        ...

    def failure(self, event: dict[str, Any]) -> LLMRuntimeError | None:
        """What an error event or error body means; None for any other."""
        ...

    def show_model(self, event: dict[str, Any], model: str) -> bool:
        """Puts the name clients know in the place of the engine's. Whether anything changed."""
        ...
