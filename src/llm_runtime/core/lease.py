"""A lease: the engine's slots a request holds. One of a request's two ends.

    granted -> running -> free                    the engine finished
    granted | running -> cancelling -> free       we asked it to stop and it confirmed
    cancelling -> suspect -> free                 it did not confirm in time

Only the backend frees a lease, because only the engine knows; a client that leaves never does.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class LeaseState(StrEnum):
    GRANTED = "granted"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUSPECT = "suspect"
    FREE = "free"


class Lease:
    """Owned by the dispatcher, which is told of the end through `on_free` (exactly once), and before through
    `on_suspect` if it gets there.

    Every method is idempotent and may be called from the loop's thread only.
    """

    __slots__ = (
        "_on_free", "_on_suspect", "cancelling_at", "granted_at", "num_slots", "replica", "request_id",
        "state",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        replica: str,
        num_slots: int,
        granted_at: float,
        on_free: Callable[[Lease], None],
        on_suspect: Callable[[Lease], None] | None = None,
    ) -> None:
        self.request_id = request_id
        self.replica = replica
        self.num_slots = num_slots
        self.granted_at = granted_at
        self.cancelling_at: float | None = None
        self.state = LeaseState.GRANTED
        self._on_free = on_free
        self._on_suspect = on_suspect

    @property
    def held(self) -> bool:
        return self.state is not LeaseState.FREE

    def run(self) -> None:
        """The engine was seen working on it."""
        if self.state is LeaseState.GRANTED:
            self.state = LeaseState.RUNNING

    def cancelling(self, now: float) -> None:
        """The engine was asked to stop."""
        if self.state in (LeaseState.GRANTED, LeaseState.RUNNING):
            self.state = LeaseState.CANCELLING
            self.cancelling_at = now

    def suspect(self) -> None:
        """The engine did not confirm a cancellation in time; the slots still count as taken."""
        if self.state is LeaseState.CANCELLING:
            self.state = LeaseState.SUSPECT
            if self._on_suspect is not None:
                self._on_suspect(self)

    def free(self) -> None:
        """The engine holds nothing of this request any more."""
        if self.state is not LeaseState.FREE:
            self.state = LeaseState.FREE
            self._on_free(self)
