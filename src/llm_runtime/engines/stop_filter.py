"""Stop strings in a text that comes in pieces, for engines whose text we cut ourselves."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Keeps stop strings, and what might become one, out of a text. Owned by one answer."""

    __slots__ = ("_held", "_longest", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string was completed (the text before it
        is then all that remains)."""
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        for size in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                self._held = tail
                return text[:-size], False
        self._held = ""
        return text, False

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held
