"""`EngineStream` over HTTP: one request to an engine that speaks an OpenAI dialect.

The same for every such engine; what differs (how a cancellation is confirmed, whether a lost
connection means a dead engine) is the backend's, behind `StreamOwner`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, final

import orjson

from llm_runtime.core.errors import BackendError, BackendProtocolError, LLMRuntimeError
from llm_runtime.core.lease import Lease
from llm_runtime.core.outcome import Usage
from llm_runtime.core.sink import Sink
from llm_runtime.engines.base import Finished, SignsOfLife, TokenSink
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.wire.answers import AnswerReader, AssembledReply
from llm_runtime.wire.errors import upstream_error
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.relay import StreamRelay

MAX_ERROR_BODY_BYTES = 64 * 1024


@final
@dataclass(init=False, slots=True, unsafe_hash=True)
class EngineCall:
    """What is sent, and how the answer is read.

    assemble: the engine is asked to stream and one body is made of its events. reader: chooses by the
    answer's content type instead; `assemble` then says nothing. refusal: what an answer other than
    200 means, of its head and its body (cut at MAX_ERROR_BODY_BYTES). headers: besides the fixed ones.
    send_once: not even again where the connection had been closed before the request reached it.
    """

    path: Final[str]
    body: Final[bytes]
    options: Final[RelayOptions]
    assemble: Final[bool]
    reader: Final[Callable[[bytes | None], AnswerReader] | None]
    refusal: Final[Callable[[Exchange, bytes], LLMRuntimeError] | None]
    headers: Final[Mapping[str, str] | None]
    send_once: Final[bool]

    def __init__(
        self,
        path: str,
        body: bytes,
        options: RelayOptions,
        *,
        assemble: bool = False,
        reader: Callable[[bytes | None], AnswerReader] | None = None,
        refusal: Callable[[Exchange, bytes], LLMRuntimeError] | None = None,
        headers: Mapping[str, str] | None = None,
        send_once: bool = False,
    ) -> None:
        self.path = path
        self.body = body
        self.options = options
        self.assemble = assemble
        self.reader = reader
        self.refusal = refusal
        self.headers = headers
        self.send_once = send_once


class StreamOwner(Protocol):
    """The backend, as its streams see it. signs: of the engine's life; written by the streams, with every
    part of an answer."""

    signs: SignsOfLife

    def now(self) -> float: ...

    def first_token(self, stream: HttpStream, now: float, *, whole: bool) -> None:
        """The first token of its answer has come. whole: with all of it."""
        ...

    def same_process(self) -> bool:
        """Whether the engine that had a request is still the one that would get it again."""
        ...

    def lost(self, error: LLMRuntimeError, stream: HttpStream) -> LLMRuntimeError:
        """The connection went away under a request: what that means in words of the error tree."""
        ...

    def release(self, stream: HttpStream) -> None:
        """The stream is over. Frees its lease at once if the engine is done with it, else asks the
        engine to stop and frees the lease when that is confirmed. Called once."""
        ...


class Requester(Protocol):
    """The way to the engine; `upstream.client.Upstream` is one."""

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        same_process: Callable[[], bool] | None = None,
    ) -> Exchange: ...


class HttpStream(Sink):
    """Pulled by its request's own task; cancelled through its run. See `base.EngineStream`."""

    def __init__(self, upstream: Requester, call: EngineCall, lease: Lease, owner: StreamOwner) -> None:
        # First what every token looks at: compiled, these lie side by side in memory, in this order.
        self._sink: TokenSink | None = None
        self._relay: StreamRelay | None = None
        """The reader, if it is one."""
        self._signs = owner.signs
        self._now = owner.now
        self.has_token = False
        self.first_token_at: float | None = None
        self.finished: Finished | None = None
        self.lease = lease
        self.exchange: Exchange | None = None
        self.answered = False
        """The engine's answer is complete: its slot is free without asking."""
        self._upstream = upstream
        self._call = call
        self._owner = owner
        self._reader: AnswerReader | None = None
        if call.reader is None:
            self._read_by(AssembledReply(call.options) if call.assemble else StreamRelay(call.options))
        self._held: bytes | Exception | None = None
        self._failure: LLMRuntimeError | None = None
        self._has_head = False
        self._released = False
        self._refused = False
        self._poked = False
        self._returned_finish = False

    def __aiter__(self) -> HttpStream:
        return self

    async def __anext__(self) -> bytes | Finished:
        if self.finished is not None:
            return self._finish()
        if self._released:
            raise StopAsyncIteration
        try:
            if self._failure is not None:
                raise self._failure
            exchange = self.exchange
            if exchange is None:
                exchange = self._ask()
            sink = self if self._sink is not None else None
            if not self._has_head:
                if not exchange.status and not await exchange.head(sink):
                    return b""
                self._has_head = True
                if exchange.status != 200:
                    self._refused = True
                    raise await self._refusal(exchange)
            reader = self._reader
            if reader is None:
                reader = self._chosen_reader(exchange)
            while True:
                data = exchange.ready()
                if data is None and not exchange.at_end:
                    data = await exchange.read(sink)
                if data == b"":
                    held, self._held = self._held, None
                    if isinstance(held, Exception):
                        raise held
                    if held is None:
                        return b""
                    out = held
                else:
                    out = reader.eof() if data is None else reader.feed(data)
                    self._note(reader)
                if reader.done:
                    self._end(reader)
                    return out if out else self._finish()
                self._failure = reader.failure  # to be raised next, whether more arrives or not
                if out:
                    return out
        except LLMRuntimeError as error:
            raise self._failed(error) from error.__cause__

    def _ask(self) -> Exchange:
        call = self._call
        again = _never if call.send_once else self._owner.same_process
        exchange = self.exchange = self._upstream.request("POST", call.path, call.body, call.headers, again)
        if self._poked:
            exchange.poke()
        return exchange

    def _chosen_reader(self, exchange: Exchange) -> AnswerReader:
        choose = self._call.reader
        assert choose is not None
        return self._read_by(choose(exchange.headers.get(b"content-type")))

    def _read_by(self, reader: AnswerReader) -> AnswerReader:
        self._reader = reader
        if isinstance(reader, StreamRelay):
            self._relay = reader
        return reader

    def push_to(self, sink: TokenSink | None) -> None:
        self._sink = sink

    def push(self, data: bytes, chunk: bytes | None) -> bool:
        """From the connection's callback, while the task waits in `__anext__`. Whatever is not simply one
        more part of the answer is left to the task, with what was made of the data."""
        relay, sink = self._relay, self._sink
        assert sink is not None
        try:
            if relay is None:
                reader = self._reader
                if reader is None:
                    assert self.exchange is not None
                    reader = self._chosen_reader(self.exchange)
                relay = self._relay
                if relay is None:
                    return self._push_by(reader, sink, data)
            out = relay.feed(data)
            self._signs.at = now = self._now()
            self.has_token = has_token = relay.has_token
            if has_token and self.first_token_at is None:
                self._note_first_token(now, whole=relay.done)
            if relay.done or relay.failure is not None:
                self._held = out
                return False
            return not out or sink.push_token(out, chunk if out is data else None, now, has_token)
        except Exception as error:
            self._held = error
            return False

    def _push_by(self, reader: AnswerReader, sink: TokenSink, data: bytes) -> bool:
        """The same for readers of other dialects."""
        out = reader.feed(data)
        now = self._note(reader)
        if reader.done or reader.failure is not None:
            self._held = out
            return False
        return not out or sink.push_token(out, None, now, self.has_token)

    def _note(self, reader: AnswerReader) -> float:
        """What every part of the answer means; returns the time."""
        self._signs.at = now = self._now()
        self.has_token = has_token = reader.has_token
        if has_token and self.first_token_at is None:
            self._note_first_token(now, whole=reader.done)
        return now

    def _note_first_token(self, now: float, *, whole: bool) -> None:
        self.first_token_at = now
        self._owner.first_token(self, now, whole=whole)

    def _end(self, reader: AnswerReader) -> None:
        usage = reader.usage or reader.spent()
        self.finished = Finished(usage, reader.finish_reason or "stop", reader.failed)
        self.answered = True
        self._release()

    async def _refusal(self, exchange: Exchange) -> LLMRuntimeError:
        body = await _short_body(exchange)
        refusal = self._call.refusal
        return refusal(exchange, body) if refusal is not None else refusal_meaning(exchange.status, body)

    def _finish(self) -> Finished:
        if self._returned_finish:
            raise StopAsyncIteration
        assert self.finished is not None
        self._returned_finish = True
        return self.finished

    def _failed(self, error: LLMRuntimeError) -> LLMRuntimeError:
        exchange = self.exchange
        if exchange is not None and exchange.lost:
            error = self._owner.lost(error, self)
        if exchange is not None and isinstance(error, BackendError):
            error.num_sends = max(exchange.num_sends, 1)
        self._release()
        return error

    def _release(self) -> None:
        if not self._released:
            self._released = True
            self._owner.release(self)

    def fail(self, error: LLMRuntimeError) -> None:
        """The engine is given up: whoever pulls gets the error, after what had arrived."""
        if self.exchange is not None:
            self.exchange.lose(error)
        elif self._failure is None:
            self._failure = error

    def cancel(self) -> None:
        """The client is gone, or the request is over for another reason. Idempotent."""
        self._release()

    def spent(self) -> Usage:
        if self.finished is not None:
            return self.finished.usage
        reader = self._reader
        if reader is None or self._refused or self.exchange is None or not self.exchange.has_started:
            return Usage(estimated=True)
        return reader.spent()

    def poke(self) -> None:
        if self.exchange is not None:
            self.exchange.poke()
        else:
            self._poked = True


def _never() -> bool:
    return False


async def _short_body(exchange: Exchange) -> bytes:
    """The body of a refusal; the connection stays usable unless the body is absurdly long."""
    chunks: list[bytes] = []
    num_bytes = 0
    while (chunk := await exchange.read()) is not None:
        num_bytes += len(chunk)
        if num_bytes > MAX_ERROR_BODY_BYTES:
            exchange.abort()
            break
        chunks.append(chunk)
    return b"".join(chunks)


def refusal_meaning(status: int, body: bytes) -> LLMRuntimeError:
    """Of an answer other than 200, as engines of ours give them."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        payload = None
    if status < 400:
        return BackendProtocolError("The engine gave an answer that is not the protocol it speaks.")
    if payload is None:
        return BackendError(f"The engine failed with status {status}.")
    return upstream_error(payload, status)
