"""`EngineStream` over a Ray replica."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from llm_runtime.core.errors import (
    BackendCrashed,
    BackendError,
    BackendProtocolError,
    BackendUnavailable,
    LLMRuntimeError,
)
from llm_runtime.core.lease import Lease
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.engines.base import Finished
from llm_runtime.engines.ray.base import Answer, ReplicaGone
from llm_runtime.engines.ray.frames import Frame, pack_request, unpack

log = structlog.get_logger(__name__)

MAX_BUFFERED_BYTES = 256 * 1024


class StreamOwner(Protocol):
    """The seat, as its streams see it."""

    def now(self) -> float: ...

    def call(self, request: bytes) -> Answer: ...

    def progressed(self) -> None: ...

    def ended(self, stream: RayStream, gone: ReplicaGone | None) -> None:
        """The replica has nothing to do with the request any more, or (`gone`) does not answer. Called
        once."""
        ...


class RayStream:
    """Pulled by its request's own task; see `base.EngineStream`.

    A task of its own reads the frames, because a pull must be able to return before the next one comes.
    It belongs to the seat, and reads on after a cancellation: the end of the frames says that the
    engine has let go, and only then are the slots free.
    """

    def __init__(self, request: RuntimeRequest, lease: Lease, owner: StreamOwner) -> None:
        self.finished: Finished | None = None
        self.has_token = False
        self.first_token_at: float | None = None
        self.lease = lease
        self.task: asyncio.Task[None] | None = None
        self.engine_was_down = False
        """The replica is there and its engine was not: it could not take the request."""
        self._request = request
        self._owner = owner
        self._answer: Answer | None = None
        self._begun_at = 0.0
        self._usage = Usage(estimated=True)
        self._parts: list[bytes] = []
        self._num_buffered = 0
        self._has_data = False
        self._has_token = False
        self._last: Finished | None = None
        self._error: LLMRuntimeError | None = None
        self._at_end = False
        self._poked = False
        self._cancelled = False
        self._returned_finish = False
        self._waiter: asyncio.Future[None] | None = None
        self._room = asyncio.Event()

    # ---- the reader's side: the request's own task

    def __aiter__(self) -> RayStream:
        return self

    async def __anext__(self) -> bytes | Finished:
        if self.finished is not None:
            return self._finish()
        if self._cancelled and self._error is None:
            raise StopAsyncIteration
        if self.task is None and self._error is None:
            self._begin()
        while not self._parts:
            if self._poked:
                self._poked = False
                self.has_token = False
                return b""
            if self._last is not None:
                self.finished = self._last
                return self._finish()
            if self._error is not None:
                raise self._error
            if self._at_end:
                raise BackendProtocolError("The engine's replica sent no end of the answer.")
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        self._poked = False
        return self._take()

    def _take(self) -> bytes:
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._num_buffered = 0
        self._room.set()
        self.has_token, self._has_token = self._has_token, False
        if self.has_token and self.first_token_at is None:
            self.first_token_at = self._owner.now()
        self.finished = self._last
        return data

    def _finish(self) -> Finished:
        if self._returned_finish:
            raise StopAsyncIteration
        assert self.finished is not None
        self._returned_finish = True
        self.has_token = False
        return self.finished

    def spent(self) -> Usage:
        return self._usage

    def poke(self) -> None:
        self._poked = True
        self._wake()

    # ---- the seat's side: the task that reads frames

    def _begin(self) -> None:
        self._begun_at = self._owner.now()
        name = f"ray request {self._request.id}"
        self.task = asyncio.get_running_loop().create_task(self._read(), name=name)

    async def _read(self) -> None:
        error: LLMRuntimeError | None = None
        gone: ReplicaGone | None = None
        try:
            answer = self._answer = self._owner.call(pack_request(self._request))
            if self._cancelled:
                answer.cancel()
            await self._read_frames(answer)
        except ReplicaGone as raised:
            gone, error = raised, self._lost()
        except Exception as raised:
            log.exception("ray.request_failed", request_id=self._request.id)
            error = BackendError("The engine's replica failed.")
            error.__cause__ = raised
        finally:
            if error is not None and self._last is None and self._error is None:
                self._error = error
            self._at_end = True
            self._wake()
            self._owner.ended(self, gone)
            self.lease.free()

    async def _read_frames(self, answer: Answer) -> None:
        while True:
            try:
                frame = unpack(await answer.__anext__())
            except StopAsyncIteration:
                return
            if not self._cancelled:
                self._add(frame)
                while self._num_buffered >= MAX_BUFFERED_BYTES and not self._cancelled:
                    self._room.clear()
                    await self._room.wait()

    def _add(self, frame: Frame) -> None:
        self._owner.progressed()
        self._usage = frame.usage
        if frame.error is not None:
            self._error = frame.error
            self.engine_was_down = isinstance(frame.error, BackendUnavailable)
        else:
            if frame.data:
                self._has_data = True
                self._parts.append(frame.data)
                self._num_buffered += len(frame.data)
            self._has_token |= frame.has_token
            if frame.finished is not None:
                self._last = frame.finished
                if not self._request.stream and frame.first_token_s is not None:
                    self.first_token_at = self._begun_at + frame.first_token_s
        self._wake()

    def _lost(self) -> LLMRuntimeError:
        if self._has_data:
            return BackendCrashed("The engine's replica was lost while it was working on the request.")
        # Nothing of an answer exists, so another replica may have it.
        return BackendUnavailable("The engine's replica is gone.", reason="replica_lost")

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ---- from outside

    def cancel(self) -> None:
        """The client is gone, or the request is over for another reason. Idempotent."""
        if self._cancelled or self._last is not None or self._at_end:
            return
        self._cancelled = True
        self._room.set()
        if self.task is None:
            self._at_end = True
            self._owner.ended(self, None)
            self.lease.free()
            return
        self.lease.cancelling(self._owner.now())
        if self._answer is not None:
            self._answer.cancel()

    def fail(self, error: LLMRuntimeError) -> None:
        """Whoever pulls gets the error, after what had arrived; the replica is asked to stop."""
        if self._error is None and self._last is None:
            self._error = error
        self.cancel()
        self._wake()
