"""Events and bodies for engines without a wire dialect of their own (mock, Hugging Face)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.wire.sse import DONE
from llm_runtime.wire.usage import usage_object


@dataclass(frozen=True, slots=True)
class PlainChoice:
    """One finished answer."""

    text: str
    finish_reason: str


class ChunkEncoder:
    """Writes one answer as complete SSE events or as one body. Owned by one request.

    Only text is encoded per event; the rest is bytes made once per choice. Finish reasons are
    OpenAI's. Order is the caller's: role, deltas, finish for each choice; usage; done.
    """

    __slots__ = ("_created", "_deltas", "_id", "_include_usage", "_is_chat", "_model", "_tail")

    def __init__(
        self, kind: EndpointKind, id: str, created: int, model: str, *, include_usage: bool = False
    ) -> None:
        self._is_chat = kind is EndpointKind.CHAT
        self._id = id
        self._created = created
        self._model = model
        self._include_usage = include_usage
        self._deltas: dict[int, bytes] = {}
        closing = b',"logprobs":null,"finish_reason":null}]'
        self._tail = (b"}" if self._is_chat else b"") + closing + self._usage_null() + b"}\n\n"

    def role(self, index: int = 0) -> bytes:
        """The first event of a chat choice; nothing for legacy completions, which have no roles."""
        if not self._is_chat:
            return b""
        return self._event(index, {"role": "assistant", "content": ""}, None)

    def delta(self, index: int, text: str) -> bytes:
        head = self._deltas.get(index)
        if head is None:
            head = self._deltas[index] = self._delta_head(index)
        return head + orjson.dumps(text) + self._tail

    def finish(self, index: int, reason: str) -> bytes:
        return self._event(index, {}, reason)

    def usage(self, usage: Usage) -> bytes:
        """Nothing unless the client asked."""
        if not self._include_usage:
            return b""
        body = {**self._head("chat.completion.chunk"), "choices": [], "usage": usage_object(usage)}
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def done(self) -> bytes:
        return DONE

    def body(self, choices: Sequence[PlainChoice], usage: Usage) -> bytes:
        """A plain reply."""
        return orjson.dumps(
            {
                **self._head("chat.completion"),
                "choices": [self._plain(index, choice) for index, choice in enumerate(choices)],
                "usage": usage_object(usage),
            }
        )

    def _head(self, chat_object: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": chat_object if self._is_chat else "text_completion",
            "created": self._created,
            "model": self._model,
        }

    def _delta_head(self, index: int) -> bytes:
        head = b"data: " + orjson.dumps(self._head("chat.completion.chunk"))[:-1]
        member = b'"delta":{"content":' if self._is_chat else b'"text":'
        return head + b',"choices":[{"index":%d,' % index + member

    def _event(self, index: int, delta: dict[str, Any], reason: str | None) -> bytes:
        answer: dict[str, Any] = {"delta": delta} if self._is_chat else {"text": ""}
        choice = {"index": index, **answer, "logprobs": None, "finish_reason": reason}
        head = orjson.dumps({**self._head("chat.completion.chunk"), "choices": [choice]})[:-1]
        return b"data: " + head + self._usage_null() + b"}\n\n"

    def _usage_null(self) -> bytes:
        return b',"usage":null' if self._include_usage else b""

    def _plain(self, index: int, choice: PlainChoice) -> dict[str, Any]:
        answer: dict[str, Any] = (
            {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
            if self._is_chat
            else {"text": choice.text}
        )
        return {"index": index, **answer, "logprobs": None, "finish_reason": choice.finish_reason}
