"""One request inside the engine program: what its connection and the generating thread share.

The generating thread does all that needs the model, prompts included; the connection's task only
passes on what comes. Imports no model library.
"""

from __future__ import annotations

import asyncio
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.hf.fields import Sampling
from llm_runtime.wire.encode import ChunkEncoder, PlainChoice
from llm_runtime.wire.parsed_request import ParsedRequest


class Cancelled(Exception):
    """Nobody wants the answer any more."""


@dataclass(frozen=True, slots=True)
class Watch:
    """on_text: with what each token added, at once. on_work: often while the prompt is worked on and at
    each token; it raises Cancelled to end the work."""

    on_text: Callable[[str], None]
    on_work: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Generated:
    """finish_reason: OpenAI's. num_tokens: all that were generated, an end token and those of a stop
    string included."""

    finish_reason: str
    num_tokens: int


class Model(Protocol):
    """Called from the generating thread only. Raises InvalidRequest for what it cannot do."""

    context_tokens: int | None

    def chat_prompt(self, messages: list[dict[str, Any]], template: Mapping[str, Any]) -> list[int]: ...

    def text_prompt(self, prompt: str | list[int]) -> list[int]: ...

    def max_tokens(self, prompt: list[int], sampling: Sampling) -> int: ...

    def generate(self, prompt: list[int], sampling: Sampling, watch: Watch) -> Generated: ...

    def probe(self) -> None:
        """Raises whatever is wrong with the engine as a whole."""
        ...


class Job:
    """One request, made and read by its connection's task on the loop; `emit` and `on_work` are the
    generating thread's. num_steps: how often that thread was seen to work on it."""

    def __init__(self, kind: EndpointKind, request: ParsedRequest) -> None:
        self.kind = kind
        self.request = request
        self.num_steps = 0
        self.error: BaseException | None = None
        self.over = asyncio.Event()
        """Set when the generating thread has nothing more to do with it."""
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._future: Future[None] | None = None
        self._cancelled = False

    def start(self, worker: Executor, model: Model) -> None:
        """Puts it in the worker's queue, which is first come, first served."""
        self._future = worker.submit(_answer, self, model)
        self._future.add_done_callback(lambda future: self._loop.call_soon_threadsafe(self._ended, future))

    def cancel(self) -> None:
        """It ends at the next token, or at the next layer while its prompt is worked on. Idempotent."""
        self._cancelled = True
        if self._future is not None:
            self._future.cancel()  # works only while it waits in the queue

    async def pieces(self) -> AsyncIterator[bytes]:
        """What is to be sent, until the end or a failure, which `error` then has."""
        while (piece := await self._pieces.get()) is not None:
            yield piece

    def _ended(self, future: Future[None]) -> None:
        self.error = Cancelled() if future.cancelled() else future.exception()
        self._pieces.put_nowait(None)
        self.over.set()

    # ---- by the generating thread

    def emit(self, piece: bytes) -> None:
        if piece:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    def on_work(self) -> None:
        if self._cancelled:
            raise Cancelled
        self.num_steps += 1


class EngineBroken(Exception):
    """The engine fails whatever it is asked: only a new process can help."""


def _answer(job: Job, model: Model) -> None:
    """The whole of a request, in the generating thread."""
    if (failure := _attempt(job, model)) is not None:
        raise failure


def _attempt(job: Job, model: Model) -> Exception | None:
    """What went wrong, without its traceback: that would keep the caches of the model alive."""
    try:
        job.on_work()
        _Answering(job, model).run()
        return None
    except (Cancelled, LLMRuntimeError) as error:
        return error.with_traceback(None)
    except Exception as error:
        traceback.print_exc()
        failure = error.with_traceback(None)
    try:
        model.probe()  # an accelerator's error can poison everything after it
    except Exception:
        traceback.print_exc()
        return EngineBroken()
    return failure


class _Answering:
    """One request's choices, one after another."""

    def __init__(self, job: Job, model: Model) -> None:
        request = job.request
        self._job = job
        self._model = model
        self._sampling = Sampling.of(request.body)
        self._num_each = request.body.get("n") or 1
        self._encoder = ChunkEncoder(
            job.kind,
            f"{'chatcmpl' if job.kind is EndpointKind.CHAT else 'cmpl'}-{uuid.uuid4().hex}",
            int(time.time()),
            request.model,
            include_usage=request.include_usage,
        )
        self._num_tokens = 0

    def run(self) -> None:
        prompts = self._prompts()
        for prompt in prompts:
            self._model.max_tokens(prompt, self._sampling)  # refused before anything is sent
        one = self._stream_one if self._job.request.stream else self._plain_one
        choices = [
            one(index, prompts[index // self._num_each]) for index in range(len(prompts) * self._num_each)
        ]
        usage = Usage(sum(map(len, prompts)), self._num_tokens)
        if self._job.request.stream:
            self._job.emit(self._encoder.usage(usage) + self._encoder.done())
        else:
            self._job.emit(self._encoder.body(choices, usage))

    def _prompts(self) -> list[list[int]]:
        body = self._job.request.body
        if self._job.kind is EndpointKind.CHAT:
            return [self._model.chat_prompt(body["messages"], body.get("chat_template_kwargs") or {})]
        prompt = body["prompt"]
        several = self._job.request.num_prompts > 1 or (
            isinstance(prompt, list) and not isinstance(prompt[0], int)
        )
        return [self._model.text_prompt(one) for one in (prompt if several else [prompt])]

    def _stream_one(self, index: int, prompt: list[int]) -> PlainChoice:
        job, encoder = self._job, self._encoder
        job.emit(encoder.role(index))
        reason = self._generate(index, prompt, lambda text: job.emit(encoder.delta(index, text)))
        job.emit(encoder.finish(index, reason))
        return PlainChoice("", reason)

    def _plain_one(self, index: int, prompt: list[int]) -> PlainChoice:
        pieces: list[str] = []
        reason = self._generate(index, prompt, pieces.append)
        return PlainChoice("".join(pieces), reason)

    def _generate(self, index: int, prompt: list[int], on_text: Callable[[str], None]) -> str:
        sampling = self._sampling
        if sampling.seed is not None:  # equal seeds would make the choices of one prompt equal
            sampling = replace(sampling, seed=sampling.seed + index % self._num_each)
        generated = self._model.generate(prompt, sampling, Watch(on_text, self._job.on_work))
        self._num_tokens += generated.num_tokens
        return generated.finish_reason
