"""What telemetry asks of the runtime when somebody looks: states and levels, read at that moment.

What has happened comes by `core.events.Events`; this is the other half, what is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

# The words of an engine's life. Telemetry knows engines only by their words.
ENGINE_STATES = ("starting", "ready", "draining", "crashed", "failed", "stopped")
BREAKER_STATES = ("closed", "open", "half_open")


@dataclass(frozen=True, slots=True)
class ReplicaReading:
    """One replica. num_free_slots: what can be granted now; num_running: requests, not slots.

    state: a word of ENGINE_STATES. suspect: a cancelled request's slots were not confirmed free.
    breaker: a word of BREAKER_STATES. resting: it asked to be left alone for a while.
    """

    replica: str
    model: str
    state: str
    num_slots: int
    num_free_slots: int
    num_running: int
    suspect: bool = False
    breaker: str = "closed"
    resting: bool = False


@dataclass(frozen=True, slots=True)
class PoolReading:
    """One queue. num_waiting_tokens: prompt estimates and caps; oldest_wait_s: 0 when empty."""

    model: str
    num_waiting: int
    num_waiting_tokens: int = 0
    oldest_wait_s: float = 0.0
    waiting_by_class: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuntimeReading:
    """The runtime at one instant. reason: in words why it is not ready."""

    ready: bool
    reason: str | None = None
    draining: bool = False
    replicas: tuple[ReplicaReading, ...] = ()
    pools: tuple[PoolReading, ...] = ()

    @property
    def num_waiting(self) -> int:
        return sum(pool.num_waiting for pool in self.pools)

    @property
    def num_running(self) -> int:
        return sum(replica.num_running for replica in self.replicas)


class RuntimeState(Protocol):
    """Implemented by the runtime."""

    def reading(self) -> RuntimeReading:
        """Synchronous, below 100 us, on the loop's thread, never raises."""
        ...
