"""One request of the load on the wire: an exchange that keeps instants instead of bytes.

Instants are taken in the callback of the read itself. No task wakes for a token, nothing waits in a
queue of ours, and all bytes of one read bear one instant.
"""

from __future__ import annotations

import asyncio

from llm_runtime.bench import errors
from llm_runtime.bench.answer import Answer, PlainAnswer, StreamAnswer, WrongKindAnswer
from llm_runtime.bench.clock import now
from llm_runtime.bench.errors import Problem
from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.engines.upstream import Exchange
from llm_runtime.engines.upstream.exchange import Carrier
from llm_runtime.engines.upstream.protocol import Connection


class LoadExchange(Exchange):
    """Owned by the task that made the request; everything but `wait` and `give_up` is the connection's.

    problem: None after `wait` for a whole answer.
    """

    __slots__ = ("_keep_text", "_kind", "_read_at", "_wants_stream", "answer", "finished_at", "first_byte_at",
                 "gone", "problem", "sent_at")  # fmt: skip

    def __init__(self, payload: bytes, *, kind: str, wants_stream: bool, keep_text: bool) -> None:
        super().__init__(payload, None)
        self._kind = kind
        self._wants_stream = wants_stream
        self._keep_text = keep_text
        self._read_at: float | None = None
        self.answer: Answer | None = None
        self.sent_at: float | None = None
        self.first_byte_at: float | None = None
        self.finished_at: float | None = None
        self.problem: Problem | None = None
        self.gone: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        """Until the answer is whole, failed or given up; failures are in `problem`, never raised."""
        await self.gone

    def give_up(self, reason: str) -> None:
        """Closes the connection; the exchange ends now, with this word as its problem."""
        if not self.ended:
            self.problem = Problem(reason)
            self.abort()

    def lose_patience(self) -> None:
        """The client leaves, unless there is a token."""
        if self.answer is None or not self.answer.token_read_at:
            self.give_up(errors.TIMEOUT)

    def carried_by(self, carrier: Carrier) -> None:
        super().carried_by(carrier)
        if isinstance(carrier, Connection):
            self.sent_at = now()

    def started(self) -> None:
        super().started()
        self.first_byte_at = self._read_at = now()

    def append(self, body: bytes) -> None:
        at = self._read_at
        if at is None:
            at = self._read_at = now()
        answer = self.answer
        if answer is None:
            answer = self.answer = self._choose()
        answer.feed(body, at)

    def arrived(self) -> None:
        self._read_at = None

    def fail(self, error: LLMRuntimeError, *, lost: bool = False) -> None:
        if not self.ended and self.problem is None:
            self.problem = errors.of_transport(error, has_started=self.has_started)
        super().fail(error, lost=lost)

    def finish(self) -> None:
        if self.ended:
            return
        super().finish()
        at = self._read_at or now()
        if self.answer is None and self.problem is None:
            self.answer = self._choose()  # an answer without a body
        answer = self.answer
        said = None if answer is None else answer.close(at)
        if answer is not None and said is None:
            # It says it is whole, so it is, whatever becomes of the connection after it.
            self.problem = None
            self.finished_at = answer.done_at
        else:
            self.problem = self._more_telling(said)
            self.finished_at = at
        if not self.gone.done():
            self.gone.set_result(None)

    def _more_telling(self, said: Problem | None) -> Problem | None:
        """The server's own word for its failure, else how the connection ended, else what is missing."""
        if said is not None and (said.error == errors.ERROR_EVENT or said.error.startswith("http_")):
            return said
        return self.problem or said

    def _choose(self) -> Answer:
        if self.status != 200:
            return PlainAnswer(self.status, keep_text=False)
        if not self._wants_stream:
            return PlainAnswer(200, keep_text=self._keep_text)
        if b"json" in self.headers.get(b"content-type", b""):
            return WrongKindAnswer(200, keep_text=False)
        return StreamAnswer(is_chat=self._kind == "chat", keep_text=self._keep_text)
