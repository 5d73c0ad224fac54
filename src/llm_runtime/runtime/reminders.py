"""Timers that mostly never fire, of which every request has one.

A request's limits of time are seconds away, and most requests end before: making and cancelling a timer of
the event loop costs more than whatever it guards. So instants that are far only stand in a table that is
looked through now and then; what comes near gets a timer of the loop, and fires as exactly as any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

NEAR_S: Final = 2.0
LOOK_S: Final = 1.0
"""Between two looks through the table; so far below NEAR_S that a late one misses nothing."""


class Reminded(Protocol):
    def on_reminder(self) -> None: ...


class Reminders:
    """One for all requests of a runtime; used on the loop's thread.

    now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now: Final = now
        self._far: Final[dict[Reminded, float]] = {}
        self._near: Final[dict[Reminded, asyncio.TimerHandle]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, who: Reminded, in_s: float) -> None:
        """Calls its `on_reminder` once, after so many seconds. It must have no other to come."""
        if in_s > NEAR_S:
            self._far[who] = self._now() + in_s
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        else:
            self._near[who] = asyncio.get_running_loop().call_later(max(in_s, 0.0), self._due, who)

    def cancel(self, who: Reminded) -> None:
        """Harmless without one."""
        if who in self._far:
            del self._far[who]
        elif who in self._near:
            self._near.pop(who).cancel()

    def _look(self) -> None:
        self._timer = None
        now = self._now()
        for who, at in [pair for pair in self._far.items() if pair[1] <= now + NEAR_S]:
            del self._far[who]
            self.set(who, at - now)
        if self._far:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _due(self, who: Reminded) -> None:
        del self._near[who]
        who.on_reminder()
