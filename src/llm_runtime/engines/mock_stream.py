"""One request in the mock engine: tokens in by steps of its batch, bytes out by pulls of its reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llm_runtime.core.errors import BackendError
from llm_runtime.core.lease import Lease
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import EngineStream, Finished, Work
from llm_runtime.engines.mock_request import make_answers, read_prompts
from llm_runtime.wire.encode import ChunkEncoder, PlainChoice

MAX_BUFFERED_BYTES = 256 * 1024
ID_PREFIXES = {EndpointKind.CHAT: "chatcmpl-", EndpointKind.COMPLETIONS: "cmpl-"}


class MockStream:
    """One request of a batch. Implements `EngineStream`.

    `step` and `fail` are the batch's, the rest belongs to the request's own task. A stream whose reader
    is slow stands still at `MAX_BUFFERED_BYTES` while the others of its batch go on.
    """

    __slots__ = (
        "_answers",
        "_begun",
        "_encoder",
        "_end",
        "_end_delivered",
        "_error",
        "_has_token",
        "_items",
        "_loop",
        "_num_buffered",
        "_on_drained",
        "_open",
        "_poked",
        "_prompt_tokens",
        "_texts",
        "_waiter",
        "finished",
        "first_token_at",
        "has_token",
        "lease",
        "stalled",
    )

    def __init__(self, work: Work, context_tokens: int, on_drained: Callable[[], None]) -> None:
        request = work.request
        prompts = read_prompts(request)
        answers = make_answers(request, prompts, context_tokens)
        self.lease: Lease = work.lease
        self.finished: Finished | None = None
        self.has_token = False
        self.first_token_at: float | None = None
        self.stalled = False
        self._answers = answers
        self._open = list(enumerate(answers))
        self._prompt_tokens = sum(prompt.num_tokens for prompt in prompts)
        self._encoder = _encoder_for(request)
        self._texts: list[list[str]] | None = None if request.stream else [[] for _ in answers]
        self._on_drained = on_drained
        self._begun = False
        self._loop = asyncio.get_running_loop()
        self._items: list[bytes] = []
        self._num_buffered = 0
        self._has_token = False
        self._end: Finished | None = None
        self._end_delivered = False
        self._error: BackendError | None = None
        self._poked = False
        self._waiter: asyncio.Future[None] | None = None

    # ---- the batch's side

    @property
    def ended(self) -> bool:
        return self._end is not None

    def step(self, now: float) -> None:
        """Generates one token for each choice that has not ended."""
        if self._num_buffered >= MAX_BUFFERED_BYTES:
            self.stalled = True
            return
        if not self._begun:
            self._begin()
        texts = self._texts
        some_ended = False
        for index, answer in self._open:
            text = answer.next()
            if text:
                if texts is None:
                    self._has_token = True
                    self._emit(self._encoder.delta(index, text))
                else:
                    texts[index].append(text)
                if self.first_token_at is None:
                    self.first_token_at = now
            if answer.finish_reason is not None:
                some_ended = True
                if texts is None:
                    self._emit(self._encoder.finish(index, answer.finish_reason))
        if some_ended:
            self._open = [(index, answer) for index, answer in self._open if answer.finish_reason is None]
            if not self._open:
                self._finish()
        if self._items:
            self._wake()

    def leave(self) -> None:
        """The batch goes on without it: whether it is read is nobody's business any more."""
        self._on_drained = _nobody

    def fail(self, error: BackendError) -> None:
        """No more will come; the reader gets the error once it has read what is there."""
        if self._end is None:
            self._error = error
            self._wake()

    def _emit(self, item: bytes) -> None:
        self._items.append(item)
        self._num_buffered += len(item)

    def _begin(self) -> None:
        """Roles go out with the first token: before it nothing is known that a client could use."""
        self._begun = True
        if self._texts is None:
            for index, _ in self._open:
                if event := self._encoder.role(index):
                    self._emit(event)

    def _finish(self) -> None:
        usage = self.spent()
        reasons = [answer.finish_reason or "stop" for answer in self._answers]
        if self._texts is None:
            self._emit(self._encoder.usage(usage) + self._encoder.done())
        else:
            texts = map("".join, self._texts)
            choices = [PlainChoice(text, reason) for text, reason in zip(texts, reasons, strict=True)]
            self._emit(self._encoder.body(choices, usage))
            self._has_token = self.first_token_at is not None
        self._end = Finished(usage, reasons[0])

    # ---- the reader's side

    def __aiter__(self) -> EngineStream:
        return self

    async def __anext__(self) -> bytes | Finished:
        while not self._items:
            if self._poked:
                self._poked = False
                self.has_token = False
                return b""
            if self._error is not None:
                raise self._error
            if self._end is not None:
                return self._last()
            self._waiter = waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        self._poked = False
        return self._take()

    def _take(self) -> bytes:
        items = self._items
        joined = items[0] if len(items) == 1 else b"".join(items)
        items.clear()
        self._num_buffered = 0
        self.has_token = self._has_token
        self._has_token = False
        self.finished = self._end
        if self.stalled:
            self.stalled = False
            self._on_drained()
        return joined

    def _last(self) -> Finished:
        if self._end is None or self._end_delivered:
            raise StopAsyncIteration
        self._end_delivered = True
        self.has_token = False
        return self._end

    def spent(self) -> Usage:
        return Usage(self._prompt_tokens, sum(answer.num_tokens for answer in self._answers))

    def poke(self) -> None:
        self._poked = True
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _encoder_for(request: RuntimeRequest) -> ChunkEncoder:
    return ChunkEncoder(
        request.kind,
        ID_PREFIXES[request.kind] + request.id,
        request.created,
        request.model,
        include_usage=request.include_usage,
    )


def _nobody() -> None: ...
