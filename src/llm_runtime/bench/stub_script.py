"""What a stub server answers, as data: events with instants. Pure; `stub` serves it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal

import orjson

MODEL = "stub"


@dataclass(frozen=True, slots=True)
class Script:
    """One answer. Instants in seconds from the request's last byte.

    role_at_s, ping_at_s: a chunk with only the role, a comment; None sends none. role_content: what
    stands beside the role. first_at_s: the first token; then one event every gap_s of
    tokens_per_event tokens, max_tokens in all unless num_tokens says otherwise; blanks: empty
    deltas before every event. num_reasoning: how many of the tokens are reasoning. tool: all tokens
    are arguments of a tool call, whose name comes at role_at_s.
    usage: with the last chunk, with every chunk, or never; usage_tokens: what it claims.
    error_after, cut_after: events after which an error event, or the loss of the connection, ends
    the stream. status: of the answer; not 200 answers with an error body at first_at_s.
    """

    role_at_s: float | None = 0.0
    role_content: Literal["absent", "empty", "null", "text"] = "absent"
    ping_at_s: float | None = None
    first_at_s: float = 0.05
    gap_s: float = 0.01
    num_tokens: int | None = None
    tokens_per_event: int = 1
    blanks: int = 0
    num_reasoning: int = 0
    tool: bool = False
    usage: Literal["last", "every", "never"] = "last"
    usage_tokens: int | None = None
    finish: bool = True
    done: bool = True
    error_after: int | None = None
    cut_after: int | None = None
    status: int = 200
    retry_after: str | None = None

    def end_s(self, num_tokens: int) -> float:
        """When the last event goes out; the finish, usage and end follow it in the same write."""
        num_events = -(-num_tokens // self.tokens_per_event)
        return self.first_at_s + max(0, num_events - 1) * self.gap_s


FAILURE = {"message": "the stub was told to fail", "type": "server_error", "param": None,
           "code": "told_to_fail"}  # fmt: skip
_FIELDS = frozenset(field.name for field in fields(Script))
Step = tuple[float, bytes]


def script_for(default: Script, request: dict[str, Any]) -> Script:
    """The server's script with what the request asks for. Raises ValueError for unknown fields."""
    wanted = request.get("stub") or {}
    if unknown := set(wanted) - _FIELDS:
        raise ValueError(f"no such field: {unknown.pop()}")
    return replace(default, **wanted)


@lru_cache(maxsize=256)
def streamed(script: Script, num_tokens: int, prompt_tokens: int, is_chat: bool) -> tuple[Step, ...]:
    """The steps of a stream, composed once for all requests alike: a stub must not be busy."""
    return tuple(Composer(script, num_tokens, prompt_tokens, is_chat=is_chat).stream())


def num_tokens_of(script: Script, request: dict[str, Any]) -> int:
    asked = request.get("max_tokens") or request.get("max_completion_tokens") or 16
    return int(asked) if script.num_tokens is None else script.num_tokens


def prompt_tokens_of(request: dict[str, Any]) -> int:
    """Words of the prompt or of all messages."""
    if isinstance(prompt := request.get("prompt"), str):
        return prompt.count(" ") + 1
    return sum(str(message.get("content")).count(" ") + 1 for message in request.get("messages") or ())


class Composer:
    """Writes one answer as steps: (instant, bytes), ascending. Pure."""

    def __init__(self, script: Script, num_tokens: int, prompt_tokens: int, *, is_chat: bool) -> None:
        self._script = script
        self._is_chat = is_chat
        self._num_tokens = num_tokens
        self._prompt_tokens = prompt_tokens
        self._repeated: bytes | None = None
        self._envelope = {"id": "stub-1", "object": "chat.completion.chunk" if is_chat else "text_completion",
                          "created": 1, "model": MODEL}  # fmt: skip

    def plain(self) -> Step:
        """The whole body, at the end of what a stream would take."""
        script, text = self._script, "word " * self._num_tokens
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        body: dict[str, Any] = {**self._envelope, "choices": [choice]}
        if script.usage != "never":
            body["usage"] = self._usage(self._num_tokens)
        return script.end_s(self._num_tokens), orjson.dumps(body)

    def stream(self) -> list[Step]:
        """Instants and events; an empty event means that the connection is lost here."""
        script = self._script
        steps: list[Step] = []
        if script.role_at_s is not None:
            steps.append((script.role_at_s, self._role()))
        if script.ping_at_s is not None:
            steps.append((script.ping_at_s, b": ping\n\n"))
        stops = {script.cut_after: b"", script.error_after: _event({"error": FAILURE})}
        num_events = -(-self._num_tokens // script.tokens_per_event)
        for number in range(num_events + 1):
            at_s = script.first_at_s + number * script.gap_s
            if number in stops:
                steps.append((at_s, stops[number]))
                break
            if number == num_events:
                steps.append((script.end_s(self._num_tokens), self._end()))
                break
            sent = number * script.tokens_per_event
            steps += [(at_s, self._delta(""))] * script.blanks
            steps.append((at_s, self._tokens(sent, min(script.tokens_per_event, self._num_tokens - sent))))
        return sorted(steps, key=lambda step: step[0])

    def _role(self) -> bytes:
        if not self._is_chat:
            return self._delta("")
        delta: dict[str, Any] = {"role": "assistant"}
        if self._script.role_content != "absent":
            delta["content"] = {"empty": "", "null": None, "text": "word "}[self._script.role_content]
        if self._script.tool:
            function = {"name": "f", "arguments": ""}
            delta["tool_calls"] = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
        return self._chunk({"delta": delta})

    def _tokens(self, start: int, count: int) -> bytes:
        script = self._script
        if self._repeated is not None and count == script.tokens_per_event:
            return self._repeated
        event = self._composed(start, count)
        if count == script.tokens_per_event and start >= script.num_reasoning and script.usage != "every":
            self._repeated = event
        return event

    def _composed(self, start: int, count: int) -> bytes:
        text = "word " * count
        if self._script.tool:
            call = {"index": 0, "function": {"arguments": text}}
            return self._chunk({"delta": {"tool_calls": [call]}}, start + count)
        if start < self._script.num_reasoning:
            return self._chunk({"delta": {"reasoning_content": text}}, start + count)
        return self._delta(text, start + count)

    def _delta(self, text: str, sent: int = 0) -> bytes:
        return self._chunk({"delta": {"content": text}} if self._is_chat else {"text": text}, sent)

    def _chunk(self, choice: dict[str, Any], sent: int = 0) -> bytes:
        chunk: dict[str, Any] = {**self._envelope, "choices": [{"index": 0, **choice, "finish_reason": None}]}
        if self._script.usage == "every":
            chunk["usage"] = self._usage(sent)
        return _event(chunk)

    def _end(self) -> bytes:
        script, parts = self._script, []
        if script.finish:
            reason = "tool_calls" if script.tool else "length"
            last: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": ""}
            choice = {"index": 0, **last, "finish_reason": reason}
            parts.append(_event({**self._envelope, "choices": [choice]}))
        if script.usage != "never":
            parts.append(_event({**self._envelope, "choices": [], "usage": self._usage(self._num_tokens)}))
        if script.done:
            parts.append(b"data: [DONE]\n\n")
        return b"".join(parts)

    def _usage(self, completion: int) -> dict[str, int]:
        claimed = self._script.usage_tokens
        completion = completion if claimed is None else claimed
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": completion,
                "total_tokens": self._prompt_tokens + completion}  # fmt: skip


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
