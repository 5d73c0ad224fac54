"""Time as a dependency. Durations come from the monotonic clock, labels from the wall clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Unix seconds, for `created` fields and logs; never for durations."""
        ...


class SystemClock:
    """The real clock. `now` is `time.monotonic`, the same clock asyncio's loop uses."""

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
