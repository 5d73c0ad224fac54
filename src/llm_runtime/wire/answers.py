"""What turns the reads of one engine's answer into the bytes a client gets, whatever form it comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from llm_runtime.core.errors import BackendProtocolError, LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.wire.assemble import ReplyAssembler
from llm_runtime.wire.bodies import PlainReply, normalise_body, stream_of_body
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.relay import StreamRelay

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Of a plain answer; a batch of 2,048 embeddings of 1,536 numbers is 40 MiB as text."""

_JSON: Final = b"application/json"
_EVENTS: Final = b"text/event-stream"


class AnswerReader(Protocol):
    """Owned by one request's engine stream, fed by the task that pulls it.

    `feed` and `eof` return what may be sent now, b"" when nothing is due; they raise BackendError, or
    what an error inside the answer means. done: the answer is complete, nothing more will come.
    has_token: what was fed last brought tokens. failure: the answer failed, though the last `feed` still
    had something to send; the next call raises it.
    """

    has_token: bool
    done: bool
    failure: LLMRuntimeError | None

    def feed(self, data: bytes) -> bytes: ...

    def eof(self) -> bytes: ...

    @property
    def usage(self) -> Usage | None:
        """None until the engine reported it."""
        ...

    @property
    def finish_reason(self) -> str | None: ...

    @property
    def failed(self) -> bool:
        """The answer is complete and says itself that it is a failure."""
        ...

    def spent(self) -> Usage:
        """Usage so far; estimated where the engine has not said."""
        ...


class AssembledReply:
    """A plain reply out of an event stream."""

    failed = False
    failure: LLMRuntimeError | None = None  # raised at once: nothing is sent before the end

    def __init__(self, options: RelayOptions) -> None:
        self._assembler = ReplyAssembler(options)
        self.has_token = False
        self.done = False

    def feed(self, data: bytes) -> bytes:
        self._assembler.feed(data)
        return self._look()

    def eof(self) -> bytes:
        self._assembler.eof()
        return self._look()

    def _look(self) -> bytes:
        self.has_token = self._assembler.has_token
        if not self._assembler.done:
            return b""
        self.done = True
        return self._assembler.body()

    @property
    def usage(self) -> Usage | None:
        return self._assembler.usage

    @property
    def finish_reason(self) -> str | None:
        return self._assembler.finish_reason

    def spent(self) -> Usage:
        return self._assembler.spent()


class WholeBody:
    """An answer that is one JSON text: kept until its end, then given its shape in one go.

    shape: makes of it what the client gets; raises for what is no answer. estimate: for an answer
    that reports no usage. streams: the client gets a stream, and its first token with this body; of
    a plain reply nobody knows when its first token was made.
    """

    failure: LLMRuntimeError | None = None

    def __init__(
        self, shape: Callable[[bytes], PlainReply], estimate: Usage, *, streams: bool = False
    ) -> None:
        self._shape = shape
        self._estimate = estimate
        self._streams = streams
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._reply: PlainReply | None = None
        self.has_token = False
        self.done = False

    def feed(self, data: bytes) -> bytes:
        self._num_bytes += len(data)
        if self._num_bytes > MAX_BODY_BYTES:
            raise BackendProtocolError("The engine's answer is too large.")
        self._parts.append(data)
        return b""

    def eof(self) -> bytes:
        self._reply = reply = self._shape(b"".join(self._parts))
        self._parts.clear()
        self.done = True
        self.has_token = self._streams
        return reply.raw

    @property
    def usage(self) -> Usage | None:
        return self._reply.usage if self._reply is not None else None

    @property
    def finish_reason(self) -> str | None:
        return self._reply.finish_reason if self._reply is not None else None

    @property
    def failed(self) -> bool:
        return self._reply is not None and self._reply.failed

    def spent(self) -> Usage:
        return self.usage or self._estimate


def is_json(content_type: bytes | None) -> bool:
    """Whether an answer says that it is one JSON text."""
    if content_type == _JSON:
        return True
    if content_type is None or content_type.startswith(_EVENTS):
        return False
    return _media_type(content_type) == _JSON


def _media_type(content_type: bytes | None) -> bytes:
    return (content_type or b"").split(b";", 1)[0].strip().lower()


def generation_reader(options: RelayOptions, content_type: bytes | None, *, stream: bool) -> AnswerReader:
    """For a chat or legacy completion, asked for as the client wants it; stream: what the client gets.

    An engine that ignores what was asked is put right: a plain reply becomes a stream of it, a stream
    is collected into a plain reply.
    """
    if stream:
        if not is_json(content_type):
            return StreamRelay(options)
        return WholeBody(lambda raw: stream_of_body(raw, options), _estimate(options), streams=True)
    if content_type != _JSON and _media_type(content_type) == _EVENTS:
        return AssembledReply(options)
    return WholeBody(lambda raw: normalise_body(raw, options), _estimate(options))


def _estimate(options: RelayOptions) -> Usage:
    return Usage(options.prompt_tokens_estimate, 0, 0, True)
