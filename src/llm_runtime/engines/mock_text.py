"""What the mock engine says: words that look like sentences, the same for the same request.

A token is one word with the space before it. Answers walk through a fixed list of words; prompt, seed
and choice decide where the walk starts, how far it steps, and whether the answer ends by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_runtime.engines.stop_filter import StopFilter

_VOCABULARY = """
the river keeps its own time and every stone in it was once part of a hill that looked down upon
water when morning comes small boats leave for open sea with nets folded like letters nobody has
read yet people wait near old houses talking about weather prices children or how far light can
travel before turning into memory some say quiet work builds more than loud plans others carry
bread salt copper wool across borders where names change but tables stay warm after rain roads
shine as if someone had written new lines on them then evening gathers birds over wide fields
while lamps appear slowly until windows hold enough gold to guide late travellers home again still
beyond bridges another valley listens because clear voices rise between gardens
"""
WORDS = tuple(_VOCABULARY.split())
"""A prime number of words, all different: every walk visits all of them, and no two choices of a prompt
begin alike."""

_SENTENCE_WORDS = 12
_FORMS = (
    tuple(" " + word.capitalize() for word in WORDS),
    *(tuple(" " + word for word in WORDS) for _ in range(_SENTENCE_WORDS - 2)),
    tuple(" " + word + "." for word in WORDS),
)
_SHORTEST_SENTENCES = 6
_MASK = 2**64 - 1


def natural_length(key: int) -> int | None:
    """Tokens after which an answer ends by itself; None for the quarter of prompts that never do.

    Whole sentences, between 72 and 132 tokens.
    """
    if key % 4 == 0:
        return None
    return _SENTENCE_WORDS * (_SHORTEST_SENTENCES + (key >> 8) % 6)


class Answer:
    """One choice being generated, a token per call of `next`.

    key: 64 bits from prompt and seed. max_tokens: where it is cut off. finish_reason: None while it
    goes on. num_tokens: generated so far, those of a stop string included.
    """

    __slots__ = ("_limit", "_limit_reason", "_position", "_stops", "_stride", "finish_reason", "num_tokens")

    def __init__(
        self, key: int, variant: int, max_tokens: int, *, stops: Sequence[str] = (), endless: bool = False
    ) -> None:
        mixed = (key + variant * 0x9E3779B97F4A7C15) & _MASK
        self._position = (key + variant) % len(WORDS)
        self._stride = 1 + (mixed >> 16) % (len(WORDS) - 1)
        end = None if endless else natural_length(mixed)
        self._limit = max_tokens if end is None else min(end, max_tokens)
        self._limit_reason = "length" if self._limit == max_tokens else "stop"
        self._stops = StopFilter(stops) if stops else None
        self.finish_reason: str | None = None
        self.num_tokens = 0

    def next(self) -> str:
        """Generates one token; returns the text that became visible, which a stop string may hold back."""
        number = self.num_tokens
        self.num_tokens = number + 1
        position = self._position
        self._position = (position + self._stride) % len(WORDS)
        text = _FORMS[number % _SENTENCE_WORDS][position]
        if number == 0:
            text = text[1:]
        if self._stops is not None:
            text, stopped = self._stops.feed(text)
            if stopped:
                self.finish_reason = "stop"
                return text
        if number + 1 >= self._limit:
            self.finish_reason = self._limit_reason
            if self._stops is not None:
                text += self._stops.flush()
        return text
