"""API families served by engines that only know chat completions."""

from __future__ import annotations

from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.facades.base import EventWriter, Facade
from llm_runtime.wire.facades.messages_out import MessagesFacade
from llm_runtime.wire.facades.responses_out import ResponsesFacade

__all__ = ["EventWriter", "Facade", "facade_for"]

_FACADES: dict[EndpointKind, Facade] = {
    EndpointKind.MESSAGES: MessagesFacade(),
    EndpointKind.RESPONSES: ResponsesFacade(),
}


def facade_for(kind: EndpointKind) -> Facade | None:
    """The shared instance; None for a family that a chat cannot stand in for."""
    return _FACADES.get(kind)
