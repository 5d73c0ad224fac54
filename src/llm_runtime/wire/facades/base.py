"""The `Facade` seam: an API family served by an engine that only knows chat completions.

A request of the family becomes a chat request, and the chat's answer, plain or streamed, an answer of
the family. Nothing is kept between requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from llm_runtime.core.errors import InvalidRequest
from llm_runtime.core.request import EndpointKind


class EventWriter(Protocol):
    """Owned by one streamed request; fed by the task that pulls it."""

    def feed(self, data: bytes) -> bytes:
        """The family's events for some whole chat events; b"" when nothing is due."""
        ...


class Facade(Protocol):
    """Stateless; one instance per family. body: of the client's request, as the family's parser left it."""

    kind: EndpointKind

    def chat_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A chat request's body, not validated yet. Raises InvalidRequest, naming the client's own
        field, for what a chat cannot express."""
        ...

    def writer(self, body: Mapping[str, Any]) -> EventWriter: ...

    def reply(self, raw: bytes, body: Mapping[str, Any]) -> bytes:
        """The family's plain reply for a chat's."""
        ...


def unsupported(param: str, why: str = "the engine behind this model cannot do it") -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported parameter '{param}': {why}.", param=param, reason="unsupported_parameter"
    )


def bad_form(param: str, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"'{param}' must be {wanted}.", param=param, reason="invalid_type")


def string_at(mapping: Mapping[str, Any], name: str, where: str) -> str:
    """A required string. where: the path of `mapping`, for the error."""
    value = mapping.get(name)
    if not isinstance(value, str):
        raise bad_form(f"{where}.{name}", "a string")
    return value
