"""A chat's answer as stretches of one kind each: text, reasoning, a refusal, a tool call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from llm_runtime.wire.sse import Mark, SseSplitter, read_event

Kind = Literal["text", "reasoning", "refusal", "tool"]

_MEMBERS: tuple[tuple[str, Kind], ...] = (
    ("reasoning_content", "reasoning"),
    ("reasoning", "reasoning"),
    ("content", "text"),
    ("refusal", "refusal"),
)


@dataclass(eq=False, slots=True)
class Segment:
    """index: its place in the answer. call_id, name: of a tool call, whose arguments are the text."""

    index: int
    kind: Kind
    call_id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


class Opened(NamedTuple):
    segment: Segment


class Piece(NamedTuple):
    segment: Segment
    text: str


class Closed(NamedTuple):
    segment: Segment


Change = Opened | Piece | Closed


class ChatAnswer:
    """What is known of the answer so far: choice 0 only. `stem`: what its id and those made from it
    have in common. usage: as the chat API has it, None before it is known."""

    def __init__(self) -> None:
        self.stem = ""
        self.created = 0
        self.model = ""
        self.finish_reason: str | None = None
        self.usage: Mapping[str, Any] | None = None
        self.segments: list[Segment] = []

    def note_head(self, body: Mapping[str, Any]) -> None:
        if not self.stem:
            self.stem = str(body["id"]).removeprefix("chatcmpl-")
            self.created = body["created"]
            self.model = body["model"]
        if body.get("usage"):
            self.usage = body["usage"]

    def count(self, *path: str) -> int:
        """A number of the usage; 0 where it is not told."""
        value: Any = self.usage
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if isinstance(value, int) else 0

    def open(self, kind: Kind, call: Mapping[str, Any] | None = None) -> Segment:
        segment = Segment(len(self.segments), kind)
        if call is not None:
            segment.call_id = call.get("id") or f"call_{self.stem}_{segment.index}"
            segment.name = (call.get("function") or {}).get("name") or ""
        self.segments.append(segment)
        return segment


def read_reply(raw: bytes) -> ChatAnswer:
    """Of a plain chat completion of ours."""
    body = orjson.loads(raw)
    answer = ChatAnswer()
    answer.note_head(body)
    choice = body["choices"][0]
    answer.finish_reason = choice["finish_reason"]
    message = choice["message"]
    for member, kind in _MEMBERS:
        if message.get(member):
            answer.open(kind).parts.append(message[member])
    for call in message.get("tool_calls") or ():
        answer.open("tool", call).parts.append((call.get("function") or {}).get("arguments") or "")
    if not answer.segments:
        answer.open("text")  # an answer of no words is still one
    return answer


class ChatReader:
    """Reads a chat stream of ours. Owned by one request's writer. done: `[DONE]` was read."""

    def __init__(self) -> None:
        self.answer = ChatAnswer()
        self.done = False
        self._splitter = SseSplitter()
        self._running: Segment | None = None
        self._calls: dict[int, Segment] = {}

    @property
    def started(self) -> bool:
        return bool(self.answer.stem)

    def feed(self, data: bytes) -> list[Change]:
        """What changed, in order. Calls may grow side by side; all are closed at the end."""
        changes: list[Change] = []
        for raw in self._splitter.feed(data):
            event = read_event(raw)
            if isinstance(event, Mark):
                changes.extend(self._close_all())
                if not self.answer.segments:
                    silence = self.answer.open("text")
                    changes += [Opened(silence), Closed(silence)]
                self.done = True
            elif event is not None:
                changes.extend(self._take(event))
        return changes

    def _take(self, event: dict[str, Any]) -> Iterator[Change]:
        self.answer.note_head(event)
        for choice in event["choices"]:
            if choice["index"] != 0:
                continue
            delta = choice["delta"]
            for member, kind in _MEMBERS:
                if delta.get(member):
                    yield from self._text(kind, delta[member])
            for position, call in enumerate(delta.get("tool_calls") or ()):
                yield from self._call(call.get("index", position), call)
            self.answer.finish_reason = choice.get("finish_reason") or self.answer.finish_reason

    def _text(self, kind: Kind, text: str) -> Iterator[Change]:
        segment = self._running
        if segment is None or segment.kind != kind:
            yield from self._close_all()
            segment = self._running = self.answer.open(kind)
            yield Opened(segment)
        segment.parts.append(text)
        yield Piece(segment, text)

    def _call(self, index: int, call: Mapping[str, Any]) -> Iterator[Change]:
        segment = self._calls.get(index)
        if segment is None:
            if self._running is not None:
                yield Closed(self._running)
                self._running = None
            segment = self._calls[index] = self.answer.open("tool", call)
            yield Opened(segment)
        arguments = (call.get("function") or {}).get("arguments")
        if arguments:
            segment.parts.append(arguments)
            yield Piece(segment, arguments)

    def _close_all(self) -> Iterator[Change]:
        if self._running is not None:
            yield Closed(self._running)
            self._running = None
        for segment in self._calls.values():
            yield Closed(segment)
        self._calls.clear()
