"""What telemetry asks of the runtime when somebody looks: states and levels, read at that moment.

What has happened comes by `core.events.Events`; this is the other half, what is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

# The words of an engine's life, and for what keeps the first in a queue waiting. Telemetry knows engines
# and schedulers only by their words.
ENGINE_STATES = ("starting", "ready", "draining", "crashed", "failed", "stopped")
BREAKER_STATES = ("closed", "open", "half_open")


@dataclass(frozen=True, slots=True)
class ReplicaReading:
    """One replica. num_free_slots: what can be granted now; num_running: requests, not slots.

    num_slots_in_force: of the slots, those that may be held; fewer where a limit adapts. None: all.
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
    num_slots_in_force: int | None = None

    @property
    def num_usable_slots(self) -> int:
        return self.num_slots if self.num_slots_in_force is None else self.num_slots_in_force


HEAD_REASONS = (
    "no_engine_ready", "no_free_slot", "needs_more_slots", "class_cap", "slots_kept", "batch_forming",
    "starting",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PoolReading:
    """One queue. num_waiting_tokens: prompt estimates and caps; oldest_wait_s: 0 when empty.

    waiting_by_flow: requests by (class, tenant). head_reason: a word of HEAD_REASONS; None: nobody waits.
    predicted_wait_s: by priority class, for one request that would come now; a class of which nothing is
    known is not in it. num_promised: places kept for refused clients that were told when to return;
    promises: what became of those before, by `kept`, `broken` and `lapsed`.
    """

    model: str
    num_waiting: int
    num_waiting_tokens: int = 0
    oldest_wait_s: float = 0.0
    waiting_by_class: Mapping[str, int] = field(default_factory=dict)
    waiting_by_flow: Mapping[tuple[str, str], int] = field(default_factory=dict)
    head_reason: str | None = None
    predicted_wait_s: Mapping[str, float] = field(default_factory=dict)
    num_promised: int = 0
    promises: Mapping[str, int] = field(default_factory=dict)


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


class SharedLimits(Protocol):
    """Implemented by what keeps tenants' limits for several servers."""

    @property
    def shared(self) -> bool:
        """Whether they hold for all servers together now."""
        ...


class RuntimeState(Protocol):
    """Implemented by the runtime."""

    def reading(self) -> RuntimeReading:
        """Synchronous, below 100 us, on the loop's thread, never raises."""
        ...
