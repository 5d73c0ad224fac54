"""When something must happen to a request although nothing comes: its limits of time, as arithmetic.

No clock and no timer here. A handle writes instants while bytes flow and asks, when its timer fires,
what has become due; so a token costs no timer call.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.core.timeline import Timeline

MAX_LOOK_S: Final = 3600.0


class Due(Enum):
    """The value names the limit in messages to clients."""

    REQUEST = "request time limit"
    FIRST_BYTE = "client's own time limit"
    TOTAL = "total time limit"
    IDLE = "stream idle limit"
    KEEP_ALIVE = "keep-alive interval"
    WRITE_STALL = "write stall limit"


class Pace:
    """Owned by one handle, written on the loop's thread only.

    pulling: the task waits for the engine; otherwise it is busy sending. engine_at: when the engine's
    last bytes came. client_at: when the last write to the client began. begun: an engine byte was
    forwarded. written: anything was, comments included. ending: the request has failed, and all that
    is left is to tell the client.
    """

    __slots__ = (
        "_keep_alive_s",
        "_limits",
        "_looks_s",
        "_stream",
        "_timeline",
        "_write_stall_s",
        "begun",
        "client_at",
        "ending",
        "engine_at",
        "first_look_at",
        "pulling",
        "written",
    )

    def __init__(
        self,
        request: RuntimeRequest,
        timeline: Timeline,
        keep_alive_s: float | None,
        write_stall_s: float | None,
    ) -> None:
        """keep_alive_s counts for streams only: nothing can be said before a plain reply."""
        limits, stream, arrived_at = request.limits, request.stream, timeline.arrived_at
        if not stream:
            keep_alive_s = None
        # First what every token looks at: compiled, these lie side by side in memory, in this order.
        self.engine_at = self.client_at = arrived_at
        self.begun = False
        self.pulling = False
        self._limits: Final = limits
        self._stream: Final = stream
        self._timeline: Final = timeline
        self._keep_alive_s: Final = keep_alive_s
        self._write_stall_s: Final = write_stall_s
        looks_s = MAX_LOOK_S
        if keep_alive_s is not None and keep_alive_s < looks_s:
            looks_s = keep_alive_s
        if write_stall_s is not None and write_stall_s < looks_s:
            looks_s = write_stall_s
        if stream and (idle_s := limits.idle_s) is not None and idle_s < looks_s:
            looks_s = idle_s
        self._looks_s = first_s = looks_s
        request_s, first_byte_s, total_s = limits.request_s, limits.first_byte_s, limits.total_s
        if request_s is not None and request_s < first_s:
            first_s = request_s
        if first_byte_s is not None and first_byte_s < first_s:
            first_s = first_byte_s
        if total_s is not None and total_s < first_s:
            first_s = total_s
        self.first_look_at = arrived_at + first_s
        """Nothing can be due before this instant."""
        self.written = False
        self.ending = False

    def look_in_s(self, now: float) -> float:
        """Seconds until somebody should ask `passed` again; 0 if something is due."""
        nearest = min((at for at, _ in self._all()), default=now + MAX_LOOK_S)
        # What moves with every byte may fall due sooner than what was seen here.
        return max(min(nearest - now, self._looks_s), 0.0)

    def passed(self, now: float) -> list[Due]:
        """What is due, the earliest first."""
        if not self.pulling:
            self.engine_at = now  # nobody listens to the engine, so its silence says nothing
        due = [(at, what) for at, what in self._all() if at <= now]
        due.sort(key=lambda pair: pair[0])
        return [what for _, what in due]

    def _all(self) -> Iterator[tuple[float, Due]]:
        if not self.ending:
            yield from self._from_arrival()
        if not self.pulling:
            if self._write_stall_s is not None:
                yield self.client_at + self._write_stall_s, Due.WRITE_STALL
        elif not self.ending:
            if self.begun and self._stream and self._limits.idle_s is not None:
                yield self.engine_at + self._limits.idle_s, Due.IDLE
            if self._keep_alive_s is not None:
                yield self.client_at + self._keep_alive_s, Due.KEEP_ALIVE

    def _from_arrival(self) -> Iterator[tuple[float, Due]]:
        limits, timeline = self._limits, self._timeline
        arrived_at = timeline.arrived_at
        if limits.request_s is not None and not (self._stream and timeline.first_token_at is not None):
            yield arrived_at + limits.request_s, Due.REQUEST
        if limits.first_byte_s is not None and not self.written:
            yield arrived_at + limits.first_byte_s, Due.FIRST_BYTE
        if limits.total_s is not None:
            yield arrived_at + limits.total_s, Due.TOTAL
