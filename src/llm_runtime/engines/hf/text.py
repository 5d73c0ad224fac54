"""From token ids to text, a token at a time. Imports nothing but the standard library."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_CONTEXT_TOKENS = 6


class Detokenizer:
    """The text that each new token adds, never half a character. Owned by one answer.

    What a token adds depends on the tokens before it (spaces, bytes of one character), so it is the
    difference between two decodings that begin a few tokens earlier. decode: of a list of token ids,
    special tokens left out and nothing tidied up. prompt: the last tokens before the answer.
    """

    __slots__ = ("_decode", "_ids", "_known", "_read", "_start")

    def __init__(self, decode: Callable[[list[int]], str], prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        context = list(prompt[-_CONTEXT_TOKENS:])
        known = decode(context) if context else ""
        if known.endswith(_INCOMPLETE):  # a prompt of token ids may end within a character
            context, known = [], ""
        self._ids = context
        self._start = 0
        self._read = len(context)
        self._known = known
        """The text of the ids from `_start` to `_read`: it was shown, or is the prompt's."""

    def feed(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(self._ids[self._start :])
        if len(text) <= len(self._known) or text.endswith(_INCOMPLETE):
            return ""
        new = text[len(self._known) :]
        self._start, self._read = self._read, len(self._ids)
        self._known = self._decode(self._ids[self._start :])
        return new

    def flush(self) -> str:
        """What the last tokens were the beginning of, when no more come."""
        text = self._decode(self._ids[self._start :])
        new = text[len(self._known) :]
        self._start = self._read = len(self._ids)
        self._known = ""
        return new
