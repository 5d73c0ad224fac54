"""Reads answers as their bytes arrive: what was a token, when, and whether the answer came whole.

Pure: instants are arguments. A role, a comment, an empty delta or a tool call's name is no token;
text, reasoning and tool-call arguments are (`wire`'s definition, which the runtime uses too).
"""

from __future__ import annotations

from array import array
from typing import Any, Protocol

import orjson

from llm_runtime.bench import errors
from llm_runtime.bench.errors import Problem
from llm_runtime.core.errors import BackendProtocolError
from llm_runtime.core.outcome import Usage
from llm_runtime.wire.dialects.chat import delta_has_token
from llm_runtime.wire.sse import SseSplitter, event_data
from llm_runtime.wire.usage import read_usage

MAX_ERROR_BYTES = 64 * 1024
GIVEN_UP = frozenset({"abort", "aborted", "error", "cancelled"})
"""Finish reasons that some servers send for an answer they did not finish."""


class Answer(Protocol):
    """What the client feeds. `feed` may be called several times with one instant: of one read."""

    token_read_at: array[float]
    """Instants of the reads that brought tokens; empty for plain answers."""
    num_token_events: int
    usage: Usage | None
    finish_reason: str | None
    done_at: float | None
    """When the answer itself said that it is complete."""
    text: list[str] | None

    def feed(self, body: bytes, at: float) -> None: ...

    def close(self, at: float) -> Problem | None:
        """After the last byte: what was wrong with it, None if it is a whole answer."""
        ...


MAX_LESSONS = 4
"""Shapes learnt in a row without one event that had them: what changes with every event is not worth it."""


class StreamAnswer:
    """An event stream. Owned by one exchange. keep_text: for follow-up turns.

    Most events differ from the one before in nothing but their text. Such an event is told by its
    two ends, at a fifth of the price of parsing it: the client must cost less than what it measures.
    """

    __slots__ = (
        "_head",
        "_is_chat",
        "_num_lessons",
        "_problem",
        "_splitter",
        "_tail",
        "done_at",
        "finish_reason",
        "num_token_events",
        "text",
        "token_read_at",
        "usage",
    )

    def __init__(self, *, is_chat: bool, keep_text: bool) -> None:
        self.token_read_at: array[float] = array("d")
        self.num_token_events = 0
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.done_at: float | None = None
        self.text: list[str] | None = [] if keep_text else None
        self._is_chat = is_chat
        self._problem: Problem | None = None
        self._splitter = SseSplitter()
        self._head, self._tail = b"", b""
        self._num_lessons = 0

    def feed(self, body: bytes, at: float) -> None:
        if self._problem is not None:
            return
        head, tail = self._head, self._tail
        if head and body.startswith(head) and body.endswith(tail) and not self._splitter.tail:
            text = body[len(head) : -len(tail)]
            # A quote may end the string early, and with it the likeness.
            if text and b'"' not in text:
                self._num_lessons = 0
                self._note_token(at)
                return
        try:
            for event in self._splitter.feed(body):
                self._take(event, at)
        except (BackendProtocolError, ValueError, TypeError, AttributeError) as error:
            self._problem = Problem(errors.BAD_ANSWER, f"not a stream of events: {error}")

    def close(self, at: float) -> Problem | None:
        self.feed(self._splitter.flush(), at)
        if self._problem is not None:
            return self._problem
        if self.finish_reason is None:
            return Problem(errors.STREAM_WITHOUT_FINISH, "the stream ended without a finish reason")
        if self.finish_reason in GIVEN_UP:
            return Problem(errors.ABORTED, f"finish reason {self.finish_reason}")
        if self.done_at is None:
            return Problem(errors.STREAM_WITHOUT_DONE, "the stream ended without [DONE]")
        return None

    def _take(self, event: bytes, at: float) -> None:
        data = event_data(event)
        if data is None:
            return  # a comment
        if data == b"[DONE]":
            self.done_at = at
            return
        parsed = orjson.loads(data)
        if error := parsed.get("error"):
            self._problem = self._problem or errors.of_event(error)
            return
        if usage := parsed.get("usage"):
            self.usage = read_usage(usage) or self.usage
        has_token = False
        for choice in parsed.get("choices") or ():
            has_token = self._choice(choice) or has_token
        if has_token:
            self._note_token(at)
            if self.text is None and not usage and self._num_lessons < MAX_LESSONS:
                self._learn(event, parsed["choices"])

    def _note_token(self, at: float) -> None:
        self.num_token_events += 1
        reads = self.token_read_at
        if not reads or reads[-1] != at:
            reads.append(at)

    def _learn(self, event: bytes, choices: list[dict[str, Any]]) -> None:
        """Takes the event's two ends, around its text, for the shape of events to come.

        Any event that differs only inside that one string is a token too, whichever string it is.
        """
        self._num_lessons += 1
        choice = choices[0]
        text = (choice.get("delta") or {}).get("content") if self._is_chat else choice.get("text")
        if len(choices) != 1 or choice.get("finish_reason") or not text:
            return
        before, quoted, after = event.partition(orjson.dumps(text))
        if quoted:
            self._head, self._tail = before + b'"', b'"' + after

    def _choice(self, choice: dict[str, Any]) -> bool:
        if reason := choice.get("finish_reason"):
            self.finish_reason = reason
        if self._is_chat:
            delta = choice.get("delta") or {}
            text = delta.get("content")
            has_token = bool(text) or delta_has_token(delta)
        else:
            text = choice.get("text")
            has_token = bool(text)
        if self.text is not None and text:
            self.text.append(text)
        return has_token


class PlainAnswer:
    """A JSON body, successful or not: no token of it has an instant of its own."""

    __slots__ = ("_body", "_status", "done_at", "finish_reason", "num_token_events", "text", "token_read_at",
                 "usage")  # fmt: skip

    def __init__(self, status: int, *, keep_text: bool) -> None:
        self.token_read_at: array[float] = array("d")
        self.num_token_events = 0
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.done_at: float | None = None
        self.text: list[str] | None = [] if keep_text else None
        self._status = status
        self._body = bytearray()

    def feed(self, body: bytes, at: float) -> None:
        if self._status == 200 or len(self._body) < MAX_ERROR_BYTES:
            self._body += body

    def close(self, at: float) -> Problem | None:
        try:
            body = orjson.loads(self._body) if self._body else None
        except ValueError:
            body = bytes(self._body[: errors.MAX_MESSAGE]).decode("utf-8", "replace")
        if self._status != 200:
            return errors.of_status(self._status, body)
        if not isinstance(body, dict):
            return Problem(errors.BAD_ANSWER, "the body is not a JSON object")
        if error := body.get("error"):
            return errors.of_event(error)
        try:
            self._read(body)
        except (AttributeError, TypeError, IndexError, KeyError) as error:
            return Problem(errors.BAD_ANSWER, f"the body is no completion: {error!r}")
        if self.finish_reason in GIVEN_UP:
            return Problem(errors.ABORTED, f"finish reason {self.finish_reason}")
        self.done_at = at
        return None

    def _read(self, body: dict[str, Any]) -> None:
        choice = body["choices"][0]
        self.finish_reason = choice.get("finish_reason")
        self.usage = read_usage(body.get("usage"))
        if self.text is not None:
            message = choice.get("message") or {}
            self.text.append(message.get("content") or choice.get("text") or "")


class WrongKindAnswer(PlainAnswer):
    """A 200 that is JSON although a stream was asked for: no latency of a token can be told from it."""

    __slots__ = ()

    def close(self, at: float) -> Problem | None:
        return super().close(at) or Problem(errors.NOT_A_STREAM, "a plain body instead of a stream")
