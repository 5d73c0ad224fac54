"""A model for the engine program that computes nothing and goes on when a test lets it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from llm_runtime.core.errors import ContextLengthExceeded, InvalidRequest
from llm_runtime.engines.hf.answering import Generated, Watch
from llm_runtime.engines.hf.fields import Sampling

WORDS = ["One", " two", " three", " four", " five", " six"]


class FakeModel:
    """`answering.Model`: an answer is the first words, one a token; then it ends, or at the cap.

    held: generation waits at each step until it is cancelled or `held` is cleared. failure: raised after
    the first word. broken: raised by the probe. seen: what was generated, in order.
    """

    def __init__(self, context_tokens: int = 100) -> None:
        self.context_tokens: int | None = context_tokens
        self.held = False
        self.failure: Exception | None = None
        self.broken: Exception | None = None
        self.seen: list[tuple[list[int], Sampling]] = []
        self.threads: set[int] = set()
        self.started = threading.Event()
        self.num_running = 0

    def chat_prompt(self, messages: list[dict[str, Any]], template: Mapping[str, Any]) -> list[int]:
        if template:
            raise InvalidRequest("No template takes that.", param="chat_template_kwargs")
        return [len(message["content"]) for message in messages]

    def text_prompt(self, prompt: str | list[int]) -> list[int]:
        return list(prompt.encode()) if isinstance(prompt, str) else prompt

    def max_tokens(self, prompt: list[int], sampling: Sampling) -> int:
        assert self.context_tokens is not None
        if len(prompt) >= self.context_tokens:
            raise ContextLengthExceeded("The prompt exceeds the context length.")
        return sampling.max_tokens or 1

    def generate(self, prompt: list[int], sampling: Sampling, watch: Watch) -> Generated:
        self.seen.append((prompt, sampling))
        self.threads.add(threading.get_ident())
        self.num_running += 1
        assert self.num_running == 1
        self.started.set()
        try:
            return self._generate(prompt, sampling, watch)
        finally:
            self.num_running -= 1

    def _generate(self, prompt: list[int], sampling: Sampling, watch: Watch) -> Generated:
        pause = threading.Event()
        words = WORDS[: self.max_tokens(prompt, sampling)]
        for word in words:
            watch.on_work()
            watch.on_text(word)
            if self.failure is not None:
                raise self.failure
            while self.held:
                watch.on_work()
                pause.wait(0.001)
        return Generated("stop" if len(words) == len(WORDS) else "length", len(words))

    def probe(self) -> None:
        if self.broken is not None:
            raise self.broken
