"""An engine's stream, made fit for the client, for the price of a byte compare per event.

Three modes, chosen event by event. *Relay*: the event is a known envelope around a string, and goes
on as read. *Rewrite*: a known envelope whose canonical form differs (the engine's clock ticked, the
client sees another model name): the string goes on between other ends. *Inspect*: everything else
is parsed: the first event of each kind, roles, finish, usage, progress, errors, log probabilities.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from llm_runtime.core.errors import BackendProtocolError, LLMRuntimeError, NotAnEventStream
from llm_runtime.core.outcome import Usage
from llm_runtime.wire.envelope import ASCII_AS_IT_IS, Envelope, is_inside, learn
from llm_runtime.wire.events import ChunkNormaliser, Progress
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.shapes import Shapes
from llm_runtime.wire.sse import DONE, END, SseSplitter, is_single_line, is_utf8, read_event

_MAX_ENVELOPES: Final = 512

_dumps: Final = orjson.dumps
_translated: Final = bytes.translate


class StreamRelay:
    """Owned by one request's engine stream; `feed` is called by the task that pulls it, nobody else.

    Output is always complete events, `[DONE]` last and only after every choice has finished. Output
    does not depend on how the input was cut into reads.

    has_token: the last `feed` brought content, reasoning or tool-call tokens.
    failure: the stream failed, though the last `feed` still had events to send; the next call
        raises it. done: `[DONE]` is out, nothing more will come.
    """

    __slots__ = (
        "_envelopes",
        "_in_event",
        "_last",
        "_normaliser",
        "_num_relayed",
        "_options",
        "_prefix_lengths",
        "_shapes",
        "_splitter",
        "_told",
        "done",
        "failure",
        "has_token",
    )

    failed = False  # a chat stream that fails raises; see AnswerReader

    def __init__(self, options: RelayOptions) -> None:
        # First what every token looks at: compiled, these lie side by side in memory, in this order.
        self._last: Envelope | None = None
        self._in_event = False
        self.has_token = False
        self.done = False
        self._num_relayed = 0
        self.failure: LLMRuntimeError | None = None
        self._options = options
        self._normaliser = ChunkNormaliser(options)
        self._splitter = SseSplitter()
        alike = options.is_chat and options.num_choices == 1 and options.keep_engine_id
        self._shapes = options.shapes if alike else None
        self._envelopes: dict[bytes, Envelope] = {}
        self._told: list[Envelope] = []  # by other streams
        self._prefix_lengths: tuple[int, ...] = ()

    def feed(self, data: bytes) -> bytes:
        """The bytes to send for one read of the engine's stream; b"" when nothing is due yet.

        Raises BackendError (or what an `error` event means) once; after that, as after `[DONE]`,
        the relay is at its end.
        """
        last = self._last
        if last is not None and not self._in_event:
            prefix, suffix = last.prefix, last.suffix
            if data.startswith(prefix) and data.endswith(suffix):
                text = data[len(prefix) : len(data) - len(suffix)]
                # As `is_inside` says it; first what nearly every token is, without another call.
                if text and (_translated(text, ASCII_AS_IT_IS) is text or is_inside(text)):
                    self.has_token = True
                    self._num_relayed += 1
                    return data if last.as_read else last.new_prefix + text + last.new_suffix
        return self._feed_events(data)

    def eof(self) -> bytes:
        """The engine closed the stream: what is left to send. Raises BackendError if it was cut."""
        self.has_token = False
        if self.failure is not None:
            raise self.failure
        if self.done:
            return b""
        try:
            out = self._left_over(self._splitter.flush())
            if self.done:
                return out
            self._normaliser.require_complete()
        except LLMRuntimeError as error:
            raise self._fail(error) from None
        return out + self._end()

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
        return self._normaliser.num_token_events + self._num_relayed

    def spent(self) -> Usage:
        """Usage so far, of a stream that may have been cut; estimated where the engine has not said."""
        self._settle_counts()
        return self._normaliser.spent()

    def _settle_counts(self) -> None:
        self._normaliser.num_token_events += self._num_relayed
        self._num_relayed = 0

    def _feed_events(self, data: bytes) -> bytes:
        self.has_token = False
        if self.failure is not None:
            raise self.failure
        if self.done:
            return b""
        out: list[bytes] = []
        try:
            events = self._splitter.feed(data)
            self._in_event = self._splitter.tail != b""
            for event in events:
                if self.done:
                    break
                out.append(self._event(event))
        except LLMRuntimeError as error:
            self._fail(error)
            if not any(out):
                raise
        return b"".join(out)

    def _event(self, event: bytes) -> bytes:
        envelope = self._known(event)
        if envelope is None:
            return self._inspect(event)
        text = event[len(envelope.prefix) : len(event) - len(envelope.suffix)]
        if text:
            self.has_token = True
            self._num_relayed += 1
        if envelope.finish_reason is not None:
            self._normaliser.finish(envelope.finish_reason)
            self._forget_finished()
        elif envelope.has_text:
            self._last = envelope
        return event if envelope.as_read else envelope.new_prefix + text + envelope.new_suffix

    def _known(self, event: bytes) -> Envelope | None:
        for told in self._told:  # few, and some of them begin alike
            if event.startswith(told.prefix) and _is_in(event, told):
                return told
        for length in self._prefix_lengths:
            envelope = self._envelopes.get(event[:length])
            if envelope is not None and _is_in(event, envelope):
                return envelope
        return None

    def _inspect(self, event: bytes) -> bytes:
        normaliser, shapes = self._normaliser, self._shapes
        is_first = not normaliser.has_begun
        if shapes is not None and is_first and (opening := shapes.opening(event)) is not None:
            self._begin(shapes, *opening)
            return event
        parsed = read_event(event)
        if parsed is None:
            return b""
        if parsed is END:
            self._normaliser.require_complete()
            return self._end()
        changed = normaliser.accept(parsed)
        if changed is None:
            return b""
        self.has_token |= normaliser.has_token
        if normaliser.finished:
            self._forget_finished()
        if is_single_line(event) and is_utf8(event):
            self._learn(event, parsed, changed=changed)
            if not changed:
                if shapes is not None:
                    self._remember(shapes, event, parsed, is_first=is_first)
                return event
        return b"data: " + _dumps(parsed) + b"\n\n"

    def _begin(self, shapes: Shapes, id: bytes, time: bytes) -> None:
        """A stream like others: what they were like is known of it."""
        self._normaliser.begin(id.decode(), int(time))
        self._told = shapes.envelopes(id, time)

    def _remember(self, shapes: Shapes, raw: bytes, event: dict[str, Any], *, is_first: bool) -> None:
        """Of an event that was sent on as read, for other streams. So the first one says the role, and no
        other does."""
        choice = event["choices"][0]
        if event.get("prompt_progress") or choice.get("logprobs"):
            return  # and usage is never sent on as read
        has_token = self._normaliser.has_token
        if not is_first:
            shapes.learn(raw, event, has_token=has_token)
        elif not has_token and choice["finish_reason"] is None:
            shapes.learn_opening(raw, event)

    def _left_over(self, event: bytes) -> bytes:
        """An event that the end of the stream cut from its blank line; half of one is no event."""
        try:
            return self._event(event) if event else b""
        except NotAnEventStream:
            raise
        except BackendProtocolError:
            return b""

    def _learn(self, raw: bytes, event: dict[str, Any], *, changed: bool) -> None:
        envelope = learn(raw, event, changed=changed)
        if envelope is None:
            return
        self._last = envelope
        if len(self._envelopes) >= _MAX_ENVELOPES:
            self._envelopes.clear()
        self._envelopes[envelope.prefix] = envelope
        length = len(envelope.prefix)
        if length not in self._prefix_lengths:
            self._prefix_lengths += (length,)

    def _forget_finished(self) -> None:
        """Text after a choice's end must not pass unseen."""
        finished = self._normaliser.finished
        if self._options.num_choices == 1 and finished:
            self._envelopes.clear()
            self._told.clear()
            self._last = None
            return
        for prefix in [p for p, e in self._envelopes.items() if e.choice_index in finished]:
            del self._envelopes[prefix]
        if self._last is not None and self._last.choice_index in finished:
            self._last = None

    def _end(self) -> bytes:
        self._settle_counts()
        self._forget_finished()
        self.done = True
        if not self._options.include_usage:
            return DONE
        return b"data: " + _dumps(self._normaliser.usage_event()) + b"\n\n" + DONE

    def _fail(self, error: LLMRuntimeError) -> LLMRuntimeError:
        self.failure = error
        self._last = None
        self._envelopes.clear()
        self._told.clear()
        return error


def _is_in(event: bytes, envelope: Envelope) -> bool:
    """Whether an event that begins with this envelope's prefix is a string inside it."""
    suffix = envelope.suffix
    start, end = len(envelope.prefix), len(event) - len(suffix)
    return end >= start and event.endswith(suffix) and is_inside(event[start:end])
