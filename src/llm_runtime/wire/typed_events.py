"""Streams of typed events (Responses, Messages): passed on as read, watched for what must be known.

Each event is parsed, because its type decides what it is; only one that shows the engine's own model
name is written anew. There is no `[DONE]`: an event of the family's own ends the stream.
"""

from __future__ import annotations

from typing import Any

import orjson

from llm_runtime.core.errors import (
    BackendError,
    BackendProtocolError,
    BackendUnavailable,
    InvalidRequest,
    LLMRuntimeError,
    NotAnEventStream,
    UpstreamRefused,
)
from llm_runtime.core.outcome import Usage
from llm_runtime.wire.dialects import typed_dialect_for
from llm_runtime.wire.dialects.base import FAILED
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.sse import Mark, SseSplitter, is_utf8, read_event


class TypedEventRelay:
    """`answers.AnswerReader` of a typed stream. Output does not depend on how the input was cut.

    When events came before a failure in one read, they are returned first and the next call raises.
    """

    __slots__ = (
        "_dialect", "_num_token_events", "_options", "_reason", "_reported", "_splitter",
        "done", "failure", "has_token",
    )  # fmt: skip

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        self._dialect = typed_dialect_for(options.kind)
        self._splitter = SseSplitter()
        self._reported: Usage | None = None
        self._reason: str | None = None
        self._num_token_events = 0
        self.failure: LLMRuntimeError | None = None
        self.has_token = False
        self.done = False

    def feed(self, data: bytes) -> bytes:
        self.has_token = False
        if self.failure is not None:
            raise self.failure
        out: list[bytes] = []
        try:
            for event in self._splitter.feed(data):
                if self.done:
                    break
                out.append(self._event(event))
        except LLMRuntimeError as error:
            self.failure = error
            if not any(out):
                raise
        return b"".join(out)

    def eof(self) -> bytes:
        self.has_token = False
        if self.failure is not None:
            raise self.failure
        left = self._splitter.flush()
        out = b""
        if left and not self.done:
            try:
                out = self._event(left)
            except NotAnEventStream:
                raise
            except BackendProtocolError:
                pass  # half an event says nothing; that it was cut is said below
        if not self.done:
            raise _truncated()
        return out

    @property
    def usage(self) -> Usage | None:
        return self._reported if self.done else None

    @property
    def finish_reason(self) -> str | None:
        return self._reason

    @property
    def failed(self) -> bool:
        return self._reason == FAILED

    def spent(self) -> Usage:
        if self.done and self._reported is not None:
            return self._reported
        told = self._reported or Usage(self._options.prompt_tokens_estimate)
        completion = max(told.completion_tokens, self._num_token_events)
        return Usage(told.prompt_tokens, completion, told.cached_tokens, estimated=True)

    def _event(self, raw: bytes) -> bytes:
        event = read_event(raw)
        if event is None:
            return b""
        if isinstance(event, Mark):
            if not self.done:
                raise _truncated()
            return b""
        dialect = self._dialect
        failure = dialect.failure(event)
        if failure is not None:
            raise self._while_answering(failure)
        if dialect.has_token(event):
            self.has_token = True
            self._num_token_events += 1
        self._note(event)
        if dialect.is_end(event):
            self.done = True
        if dialect.show_model(event, self._options.model) or not is_utf8(raw):
            return framed(event)
        return raw

    def _note(self, event: dict[str, Any]) -> None:
        dialect = self._dialect
        usage = dialect.usage(event)
        if usage is not None:
            # Reports grow; the one at the end of a Messages stream leaves out the prompt.
            last = self._reported or Usage()
            self._reported = Usage(
                max(last.prompt_tokens, usage.prompt_tokens),
                max(last.completion_tokens, usage.completion_tokens),
                max(last.cached_tokens, usage.cached_tokens),
            )
        self._reason = dialect.finish_reason(event) or self._reason

    def _while_answering(self, error: LLMRuntimeError) -> LLMRuntimeError:
        if self._num_token_events and isinstance(
            error, InvalidRequest | BackendUnavailable | UpstreamRefused
        ):
            # Half an answer is out: no refusal any more, and trying elsewhere would repeat it.
            return BackendError(error.message)
        return error


def framed(event: dict[str, Any]) -> bytes:
    """An event under its own type."""
    kind = event.get("type")
    head = f"event: {kind}\n".encode() if isinstance(kind, str) and kind.isprintable() else b""
    return head + b"data: " + orjson.dumps(event) + b"\n\n"


def _truncated() -> BackendError:
    return BackendError(
        "The engine's answer ended before it was complete.", reason="backend_stream_truncated"
    )
