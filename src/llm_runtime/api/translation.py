"""A request of one API family, served as a chat because its model's engine knows nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from llm_runtime.runtime.request_handle import RequestHandle
from llm_runtime.wire.facades import EventWriter, Facade
from llm_runtime.wire.parsed_request import ParsedRequest
from llm_runtime.wire.requests import parse_any_chat


@dataclass(frozen=True, slots=True)
class Translation:
    """One request's. original: as its own family's parser read it; chat: what is run instead."""

    facade: Facade
    original: ParsedRequest
    chat: ParsedRequest

    @classmethod
    def of(cls, facade: Facade, original: ParsedRequest) -> Translation:
        """Raises InvalidRequest for what a chat cannot express. Touches nothing shared, so it may run
        in any thread."""
        chat = parse_any_chat(facade.chat_body(original.body)).steered(
            stream=original.stream,
            include_usage=original.stream,  # the family's last event tells it
            priority=original.priority,
        )
        return cls(facade, original, chat)

    def reply(self, raw: bytes) -> bytes:
        return self.facade.reply(raw, self.original.body)

    def stream(self, handle: RequestHandle) -> TranslatedStream:
        return TranslatedStream(handle, self.facade.writer(self.original.body))


class TranslatedStream:
    """`web.stream.Pullable` over a handle; owned by the request's task, as the handle is."""

    def __init__(self, handle: RequestHandle, writer: EventWriter) -> None:
        self._handle = handle
        self._writer = writer

    @property
    def keep_alive_due(self) -> bool:
        return self._handle.keep_alive_due

    @keep_alive_due.setter
    def keep_alive_due(self, due: bool) -> None:
        self._handle.keep_alive_due = due

    @property
    def finished(self) -> object | None:
        return self._handle.finished

    async def pull(self, sink: object = None) -> object:
        """Every item is written anew, so none goes past this task to a sink."""
        item = await self._handle.pull()
        return self._writer.feed(item) if item.__class__ is bytes and item else item
