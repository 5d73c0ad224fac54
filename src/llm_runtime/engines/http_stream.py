"""`EngineStream` over HTTP: one request to an engine that speaks an OpenAI dialect.

The same for every such engine; what differs (how a cancellation is confirmed, whether a lost
connection means a dead engine) is the backend's, behind `StreamOwner`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import orjson

from llm_runtime.core.errors import BackendError, BackendProtocolError, LLMRuntimeError
from llm_runtime.core.lease import Lease
from llm_runtime.core.outcome import Usage
from llm_runtime.engines.base import Finished
from llm_runtime.engines.upstream.client import Upstream
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.wire.assemble import ReplyAssembler
from llm_runtime.wire.errors import upstream_error
from llm_runtime.wire.options import RelayOptions
from llm_runtime.wire.relay import StreamRelay

MAX_ERROR_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class EngineCall:
    """What is sent. The engine is always asked to stream; `assemble` makes one body of its events."""

    path: str
    body: bytes
    options: RelayOptions
    assemble: bool


class StreamOwner(Protocol):
    """The backend, as its streams see it."""

    def now(self) -> float: ...

    def same_process(self) -> bool:
        """Whether the engine that had a request is still the one that would get it again."""
        ...

    def progressed(self) -> None:
        """The engine did something visible."""
        ...

    def lost(self, error: LLMRuntimeError, stream: HttpStream) -> LLMRuntimeError:
        """The connection went away under a request: what that means in words of the error tree."""
        ...

    def release(self, stream: HttpStream) -> None:
        """The stream is over. Frees its lease at once if the engine is done with it, else asks the
        engine to stop and frees the lease when that is confirmed. Called once."""
        ...


class HttpStream:
    """Pulled by its request's own task; cancelled through its run. See `base.EngineStream`."""

    def __init__(self, upstream: Upstream, call: EngineCall, lease: Lease, owner: StreamOwner) -> None:
        self.finished: Finished | None = None
        self.has_token = False
        self.first_token_at: float | None = None
        self.lease = lease
        self.exchange: Exchange | None = None
        self.answered = False
        """The engine's answer is complete: its slot is free without asking."""
        self._upstream = upstream
        self._call = call
        self._owner = owner
        self._reader: StreamRelay | ReplyAssembler = (
            ReplyAssembler(call.options) if call.assemble else StreamRelay(call.options)
        )
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
            if self.exchange is None:
                self.exchange = self._upstream.request(
                    "POST", self._call.path, self._call.body, same_process=self._owner.same_process
                )
                if self._poked:
                    self.exchange.poke()
            exchange = self.exchange
            if not self._has_head:
                if not await exchange.head():
                    return b""
                self._has_head = True
                if exchange.status != 200:
                    self._refused = True
                    raise await _refusal(exchange)
            if isinstance(self._reader, StreamRelay):
                return await self._relayed(exchange, self._reader)
            return await self._assembled(exchange, self._reader)
        except LLMRuntimeError as error:
            raise self._failed(error) from error.__cause__

    async def _relayed(self, exchange: Exchange, relay: StreamRelay) -> bytes | Finished:
        while True:
            data = await exchange.read()
            if data == b"":
                return b""
            out = relay.eof() if data is None else relay.feed(data)
            self._owner.progressed()
            self.has_token = relay.has_token
            if relay.has_token and self.first_token_at is None:
                self.first_token_at = self._owner.now()
            if relay.done:
                self._end(relay.usage, relay.finish_reason)
                return out if out else self._finish()
            if out:
                return out

    async def _assembled(self, exchange: Exchange, assembler: ReplyAssembler) -> bytes | Finished:
        while True:
            data = await exchange.read()
            if data == b"":
                return b""
            if data is None:
                assembler.eof()
            else:
                assembler.feed(data)
            self._owner.progressed()
            if assembler.has_token and self.first_token_at is None:
                self.first_token_at = self._owner.now()
            if assembler.done:
                body = assembler.body()
                self._end(assembler.usage, assembler.finish_reason)
                return body

    def _end(self, usage: Usage | None, reason: str | None) -> None:
        self.finished = Finished(usage or self._reader.spent(), reason or "stop")
        self.answered = True
        self._release()

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
        self._release()
        return error

    def _release(self) -> None:
        if not self._released:
            self._released = True
            self._owner.release(self)

    def cancel(self) -> None:
        """The client is gone, or the request is over for another reason. Idempotent."""
        self._release()

    def spent(self) -> Usage:
        if self.finished is not None:
            return self.finished.usage
        if self._refused or self.exchange is None or not self.exchange.has_started:
            return Usage(estimated=True)
        return self._reader.spent()

    def poke(self) -> None:
        if self.exchange is not None:
            self.exchange.poke()
        else:
            self._poked = True


async def _refusal(exchange: Exchange) -> LLMRuntimeError:
    """What an answer other than 200 means; the connection stays usable."""
    chunks: list[bytes] = []
    num_bytes = 0
    while (chunk := await exchange.read()) is not None:
        num_bytes += len(chunk)
        if num_bytes > MAX_ERROR_BODY_BYTES:
            exchange.abort()
            break
        chunks.append(chunk)
    try:
        payload = orjson.loads(b"".join(chunks))
    except orjson.JSONDecodeError:
        payload = None
    if exchange.status < 400:
        return BackendProtocolError("The engine gave an answer that is not the protocol it speaks.")
    if payload is None:
        return BackendError(f"The engine failed with status {exchange.status}.")
    return upstream_error(payload, exchange.status)
