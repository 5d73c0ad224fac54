"""`EngineStream` of a request that takes several short calls, one after the other."""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from llm_runtime.core.errors import BackendError, BackendProtocolError, LLMRuntimeError
from llm_runtime.core.lease import Lease
from llm_runtime.core.outcome import Usage
from llm_runtime.engines.base import Finished, SignsOfLife
from llm_runtime.engines.llama_cpp.steps import Steps
from llm_runtime.engines.upstream.client import Upstream
from llm_runtime.engines.upstream.exchange import Exchange
from llm_runtime.wire.errors import upstream_error


class StepOwner(Protocol):
    """One life of the engine, as these streams see it. signs: written by them with every answer."""

    signs: SignsOfLife

    def now(self) -> float: ...

    def same_process(self) -> bool: ...


class StepStream:
    """Pulled by its request's own task; cancelled through its run.

    The engine cannot be stopped in such a call, and does not look at its connection: cancelled in
    mid-call, the lease is held until the call has ended, and no further one is made.
    """

    def __init__(self, upstream: Upstream, steps: Steps, lease: Lease, owner: StepOwner) -> None:
        self.finished: Finished | None = None
        self.has_token = False
        self.first_token_at: float | None = None
        self.lease = lease
        self._upstream = upstream
        self._steps = steps
        self._owner = owner
        self._exchange: Exchange | None = None
        self._has_head = False
        self._parts: list[bytes] = []
        self._poked = False
        self._released = False
        self._failure: LLMRuntimeError | None = None
        self._returned_finish = False

    def __aiter__(self) -> StepStream:
        return self

    async def __anext__(self) -> bytes | Finished:
        if self.finished is not None:
            return self._finish()
        if self._released:
            raise StopAsyncIteration
        try:
            if self._failure is not None:
                raise self._failure
            while (exchange := self._under_way()) is not None:
                if not await self._answered(exchange):
                    return b""
                self._take(exchange.status)
            reply = self._steps.reply()
        except LLMRuntimeError as error:
            raise self._failed(error) from error.__cause__
        self.finished = Finished(reply.usage or self._steps.spent(), reply.finish_reason)
        self._release()
        return reply.raw

    def fail(self, error: LLMRuntimeError) -> None:
        """The engine is given up: whoever pulls gets the error, and the lease is freed with its end."""
        if not self._released:
            self._failure = error
            if self._exchange is not None:
                self._exchange.lose(error)

    def cancel(self) -> None:
        """Idempotent; harmless after the end."""
        self._release()

    def spent(self) -> Usage:
        return self.finished.usage if self.finished is not None else self._steps.spent()

    def poke(self) -> None:
        self._poked = True
        if self._exchange is not None:
            self._exchange.poke()

    def _under_way(self) -> Exchange | None:
        """The call that is being made; the next one where none is; None when all are made."""
        if self._exchange is None:
            step = self._steps.next()
            if step is None:
                return None
            path, body = step
            self._exchange = self._upstream.request(
                "POST", path, orjson.dumps(body), same_process=self._owner.same_process
            )
            self._has_head = False
            self._parts = []
            if self._poked:
                self._exchange.poke()
        return self._exchange

    async def _answered(self, exchange: Exchange) -> bool:
        """Whether the whole answer is there; False after a poke."""
        self._poked = False
        if not self._has_head:
            if not await exchange.head():
                return False
            self._has_head = True
        while (part := await exchange.read()) is not None:
            if not part:
                return False
            self._parts.append(part)
        return True

    def _take(self, status: int) -> None:
        self._exchange = None
        self._owner.signs.at = self._owner.now()
        try:
            answer: Any = orjson.loads(b"".join(self._parts))
        except orjson.JSONDecodeError:
            raise BackendProtocolError("The engine's answer is not JSON.") from None
        if status != 200:
            raise upstream_error(answer, status)
        if not isinstance(answer, dict):
            raise BackendProtocolError("The engine's answer is no object.")
        self._steps.take(answer)

    def _finish(self) -> Finished:
        if self._returned_finish:
            raise StopAsyncIteration
        assert self.finished is not None
        self._returned_finish = True
        return self.finished

    def _failed(self, error: LLMRuntimeError) -> LLMRuntimeError:
        self._release()
        if self._failure is not None:
            return self._failure
        if self._owner.same_process() or not isinstance(error, BackendError):
            return error
        return BackendError("The engine crashed while it was working on the request.")

    def _release(self) -> None:
        if self._released:
            return
        self._released = True
        exchange = self._exchange
        if self._failure is not None:
            self.lease.cancelling(self._owner.now())
        elif exchange is None or exchange.ended:
            self.lease.free()
        elif not exchange.was_sent:
            exchange.abort()
            self.lease.free()
        else:
            self.lease.cancelling(self._owner.now())
            exchange.on_closed = self.lease.free
