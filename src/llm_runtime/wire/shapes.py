"""What an engine writes alike in every stream, but for the stream's id and its time.

The first event of a stream says a role, its texts come in one envelope, its last event says why it ended.
Once one stream was parsed, the next ones of the same model are known by their bytes: that a pattern holds is
proven when it is learnt, by parsing what comes of it for another id and another time.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from llm_runtime.wire.envelope import Envelope, text_slot

MAX_OF_A_KIND: Final = 8
"""A text, the arguments of a tool, and each reason to end, with one to spare for another version."""
MAX_TRIES: Final = 32
_MAX_TIME_DIGITS: Final = 12
_OTHER_ID: Final = "another-id"
_OTHER_TIME: Final = 1

_MAX_ID_BYTES: Final = 128
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-")
_PLAIN_AS_IT_IS: Final = bytes(byte if byte in _PLAIN else byte ^ 1 for byte in range(0x100))
"""See `envelope.AS_IT_IS`."""

_translated: Final = bytes.translate
_loads: Final = orjson.loads


class Pattern:
    """An event as read is before + id + between + time + after + text + suffix. finish_reason: None in the
    middle of a stream; has_text: whether there may be a text at all."""

    __slots__ = ("after", "before", "between", "finish_reason", "has_text", "suffix")

    def __init__(
        self,
        before: bytes,
        between: bytes,
        after: bytes,
        suffix: bytes,
        finish_reason: str | None,
        has_text: bool,
    ) -> None:
        self.before: Final = before
        self.between: Final = between
        self.after: Final = after
        self.suffix: Final = suffix
        self.finish_reason: Final = finish_reason
        self.has_text: Final = has_text

    def envelope(self, id: bytes, time: bytes) -> Envelope:
        """Of the stream with this id and time."""
        prefix = b"".join([self.before, id, self.between, time, self.after])
        suffix = self.suffix
        return Envelope(0, prefix, suffix, True, prefix, suffix, self.finish_reason, self.has_text)

    def is_like(self, other: Pattern) -> bool:
        return (self.before, self.between, self.after, self.suffix) == (
            other.before, other.between, other.after, other.suffix,
        )  # fmt: skip


class Shapes:
    """Owned by a backend: of one model, for clients that ask alike, so that an event means the same to all
    streams it is used for. Only for answers of one choice whose events need no change."""

    __slots__ = ("_later", "_num_tries", "_openings")

    def __init__(self) -> None:
        self._num_tries = MAX_TRIES
        """How often may still be learnt: an engine that never writes alike is not worth the work."""
        self._openings: list[Pattern] = []
        self._later: list[Pattern] = []

    def opening(self, event: bytes) -> tuple[bytes, bytes] | None:
        """Id and time of a stream that begins with this event, which says the role and nothing else; None
        for an event that has to be parsed."""
        for pattern in self._openings:
            before, between, after = pattern.before, pattern.between, pattern.after
            if not (event.startswith(before) and event.endswith(after)):
                continue
            id, found, time = event[len(before) : len(event) - len(after)].partition(between)
            if found and _is_plain_id(id) and _is_time(time):
                if self._num_tries < MAX_TRIES:
                    self._num_tries += 1
                return id, time
        return None

    def envelopes(self, id: bytes, time: bytes) -> list[Envelope]:
        """What may follow in such a stream."""
        return [pattern.envelope(id, time) for pattern in self._later]

    def learn_opening(self, raw: bytes, event: dict[str, Any]) -> None:
        """raw: a first event that was changed in nothing and brought no text. event: the same, parsed."""
        self._keep(self._openings, raw, event, (len(raw), len(raw)))

    def learn(self, raw: bytes, event: dict[str, Any], *, has_token: bool) -> None:
        """The same of a later event, which says no role, no usage and no log probabilities."""
        slot = text_slot(raw, event["choices"][0])
        if slot is None:
            if has_token:
                return  # somewhere there is what will be another text next time
            slot = (len(raw), len(raw))
        self._keep(self._later, raw, event, slot)

    def _keep(
        self, patterns: list[Pattern], raw: bytes, event: dict[str, Any], slot: tuple[int, int]
    ) -> None:
        if self._num_tries <= 0:
            return
        self._num_tries -= 1
        pattern = _pattern(raw, event, *slot)
        if pattern is None or any(pattern.is_like(known) for known in patterns):
            return
        if len(patterns) >= MAX_OF_A_KIND:
            del patterns[0]
        patterns.append(pattern)


def _is_plain_id(id: bytes) -> bool:
    return 0 < len(id) <= _MAX_ID_BYTES and _translated(id, _PLAIN_AS_IT_IS) is id


def _is_time(digits: bytes) -> bool:
    return digits.isdigit() and not digits.startswith(b"0") and len(digits) <= _MAX_TIME_DIGITS


def _pattern(raw: bytes, event: dict[str, Any], start: int, end: int) -> Pattern | None:
    """start, end: of the text in raw. None where id and time stand elsewhere than before it, id first, each
    once."""
    id, time = str(event["id"]).encode(), b"%d" % event["created"]
    if not (_is_plain_id(id) and _is_time(time)):
        return None
    before, found, rest = raw[:start].partition(b'"' + id + b'"')
    between, found_too, after = rest.partition(b":" + time + b",")
    if not (found and found_too):
        return None
    before, between, after = before + b'"', b'"' + between + b":", b"," + after
    choice = event["choices"][0]
    pattern = Pattern(before, between, after, raw[end:], choice["finish_reason"], end > start)
    text = raw[start:end]
    other = before + _OTHER_ID.encode() + between + b"%d" % _OTHER_TIME + after + text + pattern.suffix
    expected = {**event, "id": _OTHER_ID, "created": _OTHER_TIME}
    if _loads(other.removeprefix(b"data:")) != expected:
        return None
    return pattern
