"""Text of a wanted length that no server has seen before, and shared beginnings that several have.

A prompt is [shared prefix or blocks] + a head of words derived from its key + a slice of one long
pool of words. Prompt caches match beginnings, so a head of its own makes the rest its own as well,
at the price of a slice per prompt. Heads follow from the salt: the same salt gives the same prompts,
another one gives prompts that begin as none of them does.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache
from itertools import accumulate

from llm_runtime.bench.words import WORDS

POOL_WORDS = 1 << 16
HEAD_WORDS = 5
"""Of about 770 words each: 48 bits, so that chance meetings do not happen in a run."""


@lru_cache(maxsize=1)
def _pool() -> tuple[str, tuple[int, ...]]:
    """The pool's text and where each word starts, with one more start beyond the last word."""
    words = random.Random("pool").choices(WORDS, k=POOL_WORDS)
    starts = accumulate((len(word) + 1 for word in words), initial=0)
    return " ".join(words), tuple(starts)


class PromptWriter:
    """Owned by one run. The first of a process takes tens of milliseconds, a prompt microseconds."""

    def __init__(self, salt: str, tokens_per_word: float = 1.0) -> None:
        self._salt = salt.encode()
        self._tokens_per_word = tokens_per_word
        self._pool, self._starts = _pool()

    def unique(self, key: str, tokens: int) -> str:
        """About `tokens` tokens of text that starts as no other key's does."""
        return self._text(f"unique:{key}", self._num_words(tokens))

    def prefix(self, number: int, tokens: int) -> str:
        """The shared beginning with this number."""
        return self._text(f"prefix:{number}", self._num_words(tokens))

    def block(self, block_id: int, tokens: int) -> str:
        """The text that stands for a trace's block; equal ids, equal text."""
        return self._text(f"block:{block_id}", self._num_words(tokens))

    def _num_words(self, tokens: int) -> int:
        return max(1, round(tokens / self._tokens_per_word))

    def _text(self, key: str, num_words: int) -> str:
        digest = int.from_bytes(hashlib.blake2b(key.encode(), key=self._salt[:64], digest_size=16).digest())
        head = []
        for _ in range(min(HEAD_WORDS, num_words)):
            digest, choice = divmod(digest, len(WORDS))
            head.append(WORDS[choice])
        remaining = num_words - len(head)
        if remaining > 0:
            head.append(self._slice(digest % POOL_WORDS, remaining))
        return " ".join(head)

    def _slice(self, start: int, num_words: int) -> str:
        parts = []
        while num_words > 0:
            end = min(POOL_WORDS, start + num_words)
            parts.append(self._pool[self._starts[start] : self._starts[end] - 1])
            num_words -= end - start
            start = 0
        return " ".join(parts)
