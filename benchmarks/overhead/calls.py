"""What is asked and what is learnt from the answers. A token is recognised by its stamp.

See `stub_upstream`: whatever a gateway did to the event around a token, its text says when it was
written. Used from the load's loop only.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic as now
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.overhead.connections import Connection

STAMP = re.compile(rb'"content":\s?" (\d{15})"')
FINISH = re.compile(rb'"finish_reason":\s?"length"')
DONE = re.compile(rb"^data:\s?\[DONE\]", re.MULTILINE)
PLAIN_TOKENS = re.compile(rb'"completion_tokens":\s?64\b')


@dataclass(slots=True)
class Tally:
    """What a phase adds up. Instants monotonic, durations in seconds.

    measuring: whether the window is open; tokens and ends count only then. delays_s: how long each
    token was on its way from the stub. itls_s: between reads that brought tokens, within a stream.
    ttfts_s: from the instant a stream was due to its first token, for those due in the window.
    lags_s: how late the client sent.
    """

    measuring: bool = False
    num_tokens: int = 0
    num_streams: int = 0
    num_plain: int = 0
    num_sent: int = 0
    num_retries: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    delays_s: array[float] = field(default_factory=lambda: array("d"))
    itls_s: array[float] = field(default_factory=lambda: array("d"))
    ttfts_s: array[float] = field(default_factory=lambda: array("d"))
    lags_s: array[float] = field(default_factory=lambda: array("d"))

    def failed(self, reason: str) -> None:
        """Counted whenever it happens: a failure beside the window is one as well."""
        self.failures[reason] = self.failures.get(reason, 0) + 1


class Call:
    """One request. Owned by whoever made it until `on_end` is called, once."""

    __slots__ = ("due_at", "ended", "has_bytes", "on_end", "payload", "retried", "status", "tally")

    def __init__(self, payload: bytes, tally: Tally, on_end: Callable[[Connection | None], None]) -> None:
        self.payload = payload
        self.tally = tally
        self.on_end = on_end
        self.due_at = now()
        self.status = 0
        self.has_bytes = False
        self.retried = False
        self.ended = False

    def feed(self, body: bytes) -> None:
        raise NotImplementedError

    def verdict(self) -> str | None:
        """After the last byte: what was wrong, None for a whole answer."""
        raise NotImplementedError

    def sent(self) -> None:
        self.tally.num_sent += 1
        if self.tally.measuring:
            self.tally.lags_s.append(now() - self.due_at)

    def end(self, connection: Connection | None, problem: str | None) -> None:
        if self.ended:
            return
        self.ended = True
        if problem is not None:
            self.tally.failed(problem)
        self.on_end(connection)


class StreamCall(Call):
    """A stream of a known number of tokens."""

    __slots__ = ("_last_at", "_num_expected", "_num_tokens", "_rest", "_tail", "_was_due_measured")

    def __init__(
        self, payload: bytes, tally: Tally, on_end: Callable[[Connection | None], None], num_tokens: int
    ) -> None:
        super().__init__(payload, tally, on_end)
        self._num_expected = num_tokens
        self._num_tokens = 0
        self._rest = b""
        self._tail = b""
        self._last_at = 0.0
        self._was_due_measured = tally.measuring

    def feed(self, body: bytes) -> None:
        at = now()
        data = self._rest + body if self._rest else body
        if not data.endswith(b"\n\n"):
            end = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
            self._rest, data = data[end:], data[:end]
        else:
            self._rest = b""
        stamps = STAMP.findall(data)
        if not stamps:
            self._tail = (self._tail + data)[-2048:]
            return
        self._tail = data[-2048:]
        tally = self.tally
        if tally.measuring:
            tally.num_tokens += len(stamps)
            for stamp in stamps:
                tally.delays_s.append(at - int(stamp) / 1e6)
            if self._last_at:
                tally.itls_s.append(at - self._last_at)
        if not self._num_tokens and self._was_due_measured:
            tally.ttfts_s.append(at - self.due_at)
        self._num_tokens += len(stamps)
        self._last_at = at

    def verdict(self) -> str | None:
        if self.status != 200:
            return f"status {self.status}"
        end = self._tail + self._rest
        if self._num_tokens != self._num_expected:
            return "tokens lost or doubled"
        if not FINISH.search(end):
            return "no finish reason"
        if not DONE.search(end):
            return "no [DONE]"
        if self.tally.measuring:
            self.tally.num_streams += 1
        return None


class StalledCall(StreamCall):
    """A stream that is read to its first token and no further: to end is to fail."""

    __slots__ = ("_stop",)

    def __init__(
        self,
        payload: bytes,
        tally: Tally,
        on_end: Callable[[Connection | None], None],
        stop: Callable[[], None],
    ) -> None:
        """stop: called once, at the first token."""
        super().__init__(payload, tally, on_end, 0)
        self._stop: Callable[[], None] | None = stop

    def feed(self, body: bytes) -> None:
        super().feed(body)
        if self._num_tokens and self._stop is not None:
            stop, self._stop = self._stop, None
            stop()

    def verdict(self) -> str | None:
        return f"status {self.status}" if self.status != 200 else "ended unread"


class PlainCall(Call):
    """A plain reply, checked by the usage in it."""

    __slots__ = ("_parts",)

    def __init__(self, payload: bytes, tally: Tally, on_end: Callable[[Connection | None], None]) -> None:
        super().__init__(payload, tally, on_end)
        self._parts: list[bytes] = []

    def feed(self, body: bytes) -> None:
        self._parts.append(body)

    def verdict(self) -> str | None:
        if self.status != 200:
            return f"status {self.status}"
        if not PLAIN_TOKENS.search(b"".join(self._parts)):
            return "a reply without its usage"
        if self.tally.measuring:
            self.tally.num_plain += 1
        return None
