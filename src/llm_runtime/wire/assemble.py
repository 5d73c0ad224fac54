"""A plain reply made from an engine's stream: engines whose plain replies can't be cancelled are
always asked to stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from llm_runtime.core.errors import BackendProtocolError, NotAnEventStream
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.dialects.chat import TEXT_MEMBERS
from llm_runtime.wire.events import ChunkNormaliser, Progress
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.sse import Mark, SseSplitter, read_event

_ONCE = frozenset({"id", "type", "name", "role"})
"""Said once; engines that repeat them mean the same, not more."""

_TEXTS = frozenset({*TEXT_MEMBERS, "text"})
"""Long strings, kept as pieces until the end."""

_ENVELOPE = frozenset({"id", "object", "created", "model", "choices", "usage"})
_CHOICE = frozenset({"index", "delta", "text", "finish_reason", "logprobs"})


@dataclass(slots=True)
class _Choice:
    texts: dict[str, list[str]] = field(default_factory=dict)
    message: dict[str, Any] = field(default_factory=dict)
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    logprobs: dict[str, Any] | None = None
    extras: dict[str, Any] = field(default_factory=dict)


class ReplyAssembler:
    """Owned by one plain request's engine stream; fed by the task that pulls it.

    has_token: the last `feed` brought tokens. done: the answer is complete; `body` may be called.
    """

    __slots__ = ("_choices", "_extras", "_normaliser", "_options", "_splitter", "done", "has_token")

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        self._normaliser = ChunkNormaliser(options)
        self._splitter = SseSplitter()
        self._choices: dict[int, _Choice] = {}
        self._extras: dict[str, Any] = {}
        self.has_token = False
        self.done = False

    def feed(self, data: bytes) -> None:
        """Takes in one read. Raises BackendError, or what an `error` event means."""
        self.has_token = False
        for event in self._splitter.feed(data):
            if not self.done:
                self._event(event)

    def eof(self) -> None:
        """The engine closed the stream. Raises BackendError unless the answer is complete."""
        self.has_token = False
        left = self._splitter.flush()
        try:
            if left and not self.done:
                self._event(left)
        except NotAnEventStream:
            raise
        except BackendProtocolError:
            pass  # half an event; whether it was needed shows next
        self._normaliser.require_complete()
        self.done = True

    def body(self) -> bytes:
        """The reply: one JSON object with every key that clients require."""
        options, normaliser = self._options, self._normaliser
        choices = [self._plain(index) for index in sorted(self._choices)]
        usage = normaliser.meter.written(fallback=normaliser.spent())
        return orjson.dumps(
            {
                "id": normaliser.id or options.id,
                "object": options.body_object,
                "created": options.created if normaliser.created is None else normaliser.created,
                "model": options.model,
                "choices": choices,
                "usage": usage,
                **self._extras,
            }
        )

    @property
    def usage(self) -> Usage | None:
        """None until the engine reported it; at the end an estimate if it never did."""
        total = self._normaliser.meter.total()
        return self.spent() if total is None and self.done else total

    @property
    def finish_reason(self) -> str | None:
        """Of choice 0."""
        return self._normaliser.finished.get(0)

    @property
    def progress(self) -> Progress | None:
        return self._normaliser.progress

    @property
    def num_token_events(self) -> int:
        return self._normaliser.num_token_events

    def spent(self) -> Usage:
        """Usage so far; estimated where the engine has not said."""
        return self._normaliser.spent()

    def _event(self, event: bytes) -> None:
        parsed = read_event(event)
        if parsed is Mark.END:
            self._normaliser.require_complete()
            self.done = True
            return
        if parsed is None or self._normaliser.accept(parsed) is None:
            return
        self.has_token |= self._normaliser.has_token
        for choice in parsed["choices"]:
            self._take(choice)
        for key in parsed.keys() - _ENVELOPE:
            if parsed[key] is not None:
                self._extras[key] = parsed[key]

    def _take(self, piece: dict[str, Any]) -> None:
        choice = self._choices.setdefault(piece["index"], _Choice())
        pieces = piece["delta"] if "delta" in piece else {"text": piece["text"]}
        for key, value in pieces.items():
            if key in _TEXTS and isinstance(value, str):
                choice.texts.setdefault(key, []).append(value)
            elif key == "tool_calls":
                self._take_calls(choice, value)
            elif key != "content":
                merge(choice.message, key, value)
        logprobs = piece.get("logprobs")
        if isinstance(logprobs, dict):
            choice.logprobs = choice.logprobs or {}
            for key, value in logprobs.items():
                merge(choice.logprobs, key, value)
        for key in piece.keys() - _CHOICE:
            if piece[key] is not None:
                choice.extras[key] = piece[key]

    def _take_calls(self, choice: _Choice, calls: Any) -> None:
        for position, call in enumerate(calls or ()):
            if not isinstance(call, dict):
                raise BackendProtocolError("The engine sent a tool call that is no object.")
            index = call.get("index")
            known = choice.tool_calls.setdefault(index if isinstance(index, int) else position, {})
            for key, value in call.items():
                if key != "index":
                    merge(known, key, value)

    def _plain(self, index: int) -> dict[str, Any]:
        choice = self._choices[index]
        texts = {key: "".join(parts) for key, parts in choice.texts.items()}
        if self._options.kind is EndpointKind.CHAT:
            message = {"role": "assistant", "content": "", "refusal": None, **choice.message, **texts}
            if choice.tool_calls:
                message["tool_calls"] = [choice.tool_calls[key] for key in sorted(choice.tool_calls)]
            if not message["content"] and (choice.tool_calls or message.get("function_call")):
                message["content"] = None
            answer: dict[str, Any] = {"message": message}
        else:
            answer = {"text": texts.get("text", "")}
        return {
            "index": index,
            **answer,
            "logprobs": choice.logprobs,
            "finish_reason": self._normaliser.finished[index],
            **choice.extras,
        }


def merge(into: dict[str, Any], key: str, piece: Any) -> None:
    """Adds one piece of a delta: strings and lists grow, objects merge, anything else replaces.

    `id`, `type`, `name` and `role` are said once. Null adds nothing.
    """
    have = into.get(key)
    if have is None:
        # Copied, because later pieces grow it and the event is not ours to change.
        into[key] = _copied(piece)
    elif piece is None or (key in _ONCE and have):
        return
    elif isinstance(have, dict) and isinstance(piece, dict):
        for inner, value in piece.items():
            merge(have, inner, value)
    elif isinstance(have, list) and isinstance(piece, list):
        have.extend(piece)
    elif isinstance(have, str) and isinstance(piece, str):
        into[key] = have + piece
    else:
        into[key] = piece


def _copied(piece: Any) -> Any:
    if isinstance(piece, dict):
        return {key: _copied(value) for key, value in piece.items()}
    return list(piece) if isinstance(piece, list) else piece
