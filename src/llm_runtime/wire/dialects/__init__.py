"""One `Dialect` per API family."""

from __future__ import annotations

from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.dialects.base import Dialect
from llm_runtime.wire.dialects.chat import ChatDialect
from llm_runtime.wire.dialects.completions import CompletionsDialect

__all__ = ["Dialect", "dialect_for"]

_DIALECTS: dict[EndpointKind, Dialect] = {
    EndpointKind.CHAT: ChatDialect(),
    EndpointKind.COMPLETIONS: CompletionsDialect(),
}


def dialect_for(kind: EndpointKind) -> Dialect:
    """The shared instance for an API family. Raises KeyError for a family nobody serves yet."""
    return _DIALECTS[kind]
