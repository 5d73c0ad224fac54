"""`EngineStream` over vLLM's serving classes in this process."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Protocol

from llm_runtime.core.errors import BackendCrashed, BackendError, LLMRuntimeError
from llm_runtime.core.lease import Lease
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.engines.base import Finished
from llm_runtime.engines.vllm.calls import engine_ids, relay_options, vllm_body
from llm_runtime.engines.vllm.core import EngineCore, Tally
from llm_runtime.wire.answers import AnswerReader, generation_reader

MAX_BUFFERED_BYTES = 256 * 1024

_TYPES = {True: b"text/event-stream", False: b"application/json"}


class StreamOwner(Protocol):
    """The life of the engine, as its streams see it."""

    core: EngineCore

    def now(self) -> float: ...

    def first_token(self, stream: InProcessStream, *, whole: bool) -> float:
        """As for `http_stream.StreamOwner`."""
        ...

    def progressed(self) -> None: ...

    def ended(self, stream: InProcessStream) -> None:
        """The engine has nothing to do with the request any more. Called once."""
        ...


class InProcessStream:
    """Pulled by its request's own task; see `base.EngineStream`.

    A task of its own runs vLLM's generator, because a pull must be able to return before the next
    token without disturbing it. The task belongs to the life of the engine, ends with the answer or by
    `cancel`, and frees the lease as the last thing it does.
    """

    def __init__(
        self, request: RuntimeRequest, lease: Lease, owner: StreamOwner, *, with_priority: bool
    ) -> None:
        self.finished: Finished | None = None
        self.has_token = False
        self.first_token_at: float | None = None
        self.lease = lease
        self.task: asyncio.Task[None] | None = None
        self._request = request
        self._body = vllm_body(request, with_priority=with_priority)
        self._options = relay_options(request)
        self._owner = owner
        self._tally = Tally()
        self._reader: AnswerReader | None = None
        self._parts: list[bytes] = []
        self._num_buffered = 0
        self._at_end = False
        self._error: LLMRuntimeError | None = None
        self._poked = False
        self._cancelled = False
        self._ending = False
        self._returned_finish = False
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    def __aiter__(self) -> InProcessStream:
        return self

    async def __anext__(self) -> bytes | Finished:
        if self.finished is not None:
            return self._finish()
        if self._cancelled and self._error is None:
            raise StopAsyncIteration
        self._begin()
        while True:
            while not (self._parts or self._at_end or self._error or self._poked):
                self._arrived.clear()
                await self._arrived.wait()
            if self._poked:
                self._poked = False
                return b""
            try:
                out = self._read()
            except LLMRuntimeError as error:
                raise self._failed(error) from error.__cause__
            if self.finished is not None and not out:
                return self._finish()
            if out:
                return out

    def _begin(self) -> None:
        if self.task is None and self._error is None:
            name = f"vllm request {self._request.id}"
            self.task = asyncio.get_running_loop().create_task(self._run(), name=name)

    def _read(self) -> bytes:
        reader = self._reader
        if self._error is not None and not self._parts:
            raise self._error
        if reader is None:
            raise BackendError("The request was given up.")
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._num_buffered = 0
            self._room.set()
            out = reader.feed(data)
            if reader.failure is not None:
                self._error = reader.failure  # to be raised next, whether more arrives or not
        else:
            out = reader.eof()
        self.has_token = reader.has_token
        if reader.has_token and self.first_token_at is None:
            self.first_token_at = self._owner.first_token(self, whole=reader.done)
        if reader.done:
            self.finished = Finished(
                reader.usage or self._tally.usage(), reader.finish_reason or "stop", reader.failed
            )
        return out

    def _finish(self) -> Finished:
        if self._returned_finish:
            raise StopAsyncIteration
        assert self.finished is not None
        self._returned_finish = True
        return self.finished

    def _failed(self, error: LLMRuntimeError) -> LLMRuntimeError:
        self.cancel()
        if self._owner.core.dead:
            return BackendCrashed("The engine crashed while it was working on the request.")
        return error

    # ---- the task that runs vLLM's generator

    async def _run(self) -> None:
        core = self._owner.core
        names = engine_ids(self._request)
        try:
            answer = await core.ask(self._request.kind, self._body, self._tally)
            streams = not isinstance(answer, bytes)
            self._reader = generation_reader(
                self._options, stream=self._request.stream, content_type=_TYPES[streams]
            )
            if isinstance(answer, bytes):
                self._take(answer)
            else:
                async with aclosing(answer):
                    async for text in answer:
                        self._take(text.encode())
                        if self._num_buffered >= MAX_BUFFERED_BYTES:
                            self._room.clear()
                            await self._room.wait()
            names = ()
        except LLMRuntimeError as error:
            self._error = error
        except Exception as error:
            self._error = BackendError("The engine failed.")
            self._error.__cause__ = error
        finally:
            self._ending = self._at_end = True
            self._arrived.set()
            try:
                if names:
                    await core.drop(names)
            finally:
                core.forget(self._options.id)
                self._owner.ended(self)
                self.lease.free()

    def _take(self, data: bytes) -> None:
        self._parts.append(data)
        self._num_buffered += len(data)
        self._owner.progressed()
        self._arrived.set()

    # ---- from outside

    def cancel(self) -> None:
        """The client is gone, or the request is over for another reason. Idempotent."""
        if self._cancelled or self.finished is not None:
            return
        self._cancelled = True
        if self.task is None:
            self._owner.ended(self)
            self.lease.free()
        elif not self._ending:
            self.lease.cancelling(self._owner.now())
            self.task.cancel()

    def fail(self, error: LLMRuntimeError) -> None:
        """The engine is gone: whoever pulls gets the error, after what had arrived."""
        if self._error is None and not self._at_end:
            self._error = error
            self._at_end = True
        self._arrived.set()
        self.cancel()

    def spent(self) -> Usage:
        return self.finished.usage if self.finished is not None else self._tally.usage()

    def poke(self) -> None:
        self._poked = True
        self._arrived.set()
