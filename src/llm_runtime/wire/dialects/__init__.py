"""One `Dialect` per API family."""

from __future__ import annotations

from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.dialects.base import Dialect, TypedDialect
from llm_runtime.wire.dialects.chat import ChatDialect
from llm_runtime.wire.dialects.completions import CompletionsDialect
from llm_runtime.wire.dialects.messages import MessagesDialect
from llm_runtime.wire.dialects.plain import PlainDialect
from llm_runtime.wire.dialects.responses import ResponsesDialect

__all__ = ["Dialect", "TypedDialect", "dialect_for", "typed_dialect_for"]

_TYPED: dict[EndpointKind, TypedDialect] = {
    EndpointKind.RESPONSES: ResponsesDialect(),
    EndpointKind.MESSAGES: MessagesDialect(),
}

_DIALECTS: dict[EndpointKind, Dialect] = {
    EndpointKind.CHAT: ChatDialect(),
    EndpointKind.COMPLETIONS: CompletionsDialect(),
    **_TYPED,
    **{
        kind: PlainDialect(kind)
        for kind in (EndpointKind.EMBEDDINGS, EndpointKind.RERANK, EndpointKind.TOKENIZE)
    },
}


def dialect_for(kind: EndpointKind) -> Dialect:
    """The shared instance for an API family."""
    return _DIALECTS[kind]


def typed_dialect_for(kind: EndpointKind) -> TypedDialect:
    """The same, for a family of typed events. Raises KeyError for any other."""
    return _TYPED[kind]
