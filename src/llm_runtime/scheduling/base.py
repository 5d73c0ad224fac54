"""The `Scheduler` seam: in what order requests run. Pure and synchronous; time is an argument.

One scheduler per pool (the model x endpoint kinds that share slots). It never touches a socket,
a clock or a task: events in, a `Decision` out, and the dispatcher carries the decision out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from llm_runtime.core.outcome import Usage
from llm_runtime.core.quick import quick
from llm_runtime.core.request import PriorityClass, RuntimeRequest


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What is in force now: slots and replicas, taken or not, of those that are ready."""

    num_slots: int
    num_replicas: int


class Room(Protocol):
    """What can run now, as far as one request needs to know that finds nobody waiting."""

    def place(self, request: RuntimeRequest) -> str | None:
        """Reserves `request.num_slots` on the best replica that has them free; None if none has.

        A reservation holds for the current decision only; the dispatcher turns it into a lease.
        """
        ...

    @property
    def batch_limit(self) -> int | None:
        """Static engines: slots of the largest batch an idle replica would take now (None if no
        replica is static)."""
        ...


class Capacity(Room, Protocol):
    """What can run now, consumed while a decision is made. The router stands behind it."""

    @property
    def exhausted(self) -> bool:
        """No replica has a single free slot: no use in asking on."""
        ...

    @property
    def size(self) -> PoolSize: ...


class Dispatched:
    __slots__ = ("replica", "request_id")

    def __init__(self, request_id: str, replica: str) -> None:
        self.request_id: Final = request_id
        self.replica: Final = replica


class FirstToken:
    __slots__ = ("request_id",)

    def __init__(self, request_id: str) -> None:
        self.request_id: Final = request_id


class RequestFinished:
    """It left the engine, in whatever way. usage: what was spent, None if unknown."""

    __slots__ = ("request_id", "usage")

    def __init__(self, request_id: str, usage: Usage | None) -> None:
        self.request_id: Final = request_id
        self.usage: Final = usage


class Requeued:
    """It was dispatched but no engine byte was forwarded; it goes back to its old place."""

    __slots__ = ("queued_at", "request")

    def __init__(self, request: RuntimeRequest, queued_at: float) -> None:
        self.request: Final = request
        self.queued_at: Final = queued_at


SchedulingEvent = Dispatched | FirstToken | RequestFinished | Requeued


class Placement:
    """work: what it is expected to cost, in the unit of `Outlook.work`."""

    __slots__ = ("replica", "request_id", "work")

    def __init__(self, request_id: str, replica: str, work: float = 1.0) -> None:
        self.request_id: Final = request_id
        self.replica: Final = replica
        self.work: Final = work


@dataclass(frozen=True, slots=True)
class Eviction:
    """reason: `queue_timeout`, `shed` or `would_miss_deadline`."""

    request_id: str
    reason: str


class Decision:
    """What to do now. Everything named in `dispatch` and `evict` has already left the queue.

    preempt: on an engine and without a token; back to the queue, unless something was sent by now.
    shed: on an engine; back to the queue if nothing was sent, else to be ended.
    wake_at: monotonic instant at which to ask again even if nothing happens; None if no need.
    """

    __slots__ = ("dispatch", "evict", "preempt", "shed", "wake_at")

    def __init__(
        self,
        dispatch: tuple[Placement, ...] = (),
        evict: tuple[Eviction, ...] = (),
        preempt: tuple[str, ...] = (),
        wake_at: float | None = None,
        shed: tuple[str, ...] = (),
    ) -> None:
        self.dispatch: Final = dispatch
        self.evict: Final = evict
        self.preempt: Final = preempt
        self.wake_at: Final = wake_at
        self.shed: Final = shed


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """num_waiting and num_waiting_tokens (prompt estimate + cap) in all; waiting, and its expected work, by
    class."""

    num_waiting: int = 0
    num_waiting_slots: int = 0
    num_waiting_tokens: int = 0
    oldest_wait_s: float = 0.0
    waiting_by_class: Mapping[str, int] = field(default_factory=dict)
    work_by_class: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


NO_ENGINE_READY = "no_engine_ready"
NO_FREE_SLOT = "no_free_slot"
NEEDS_MORE_SLOTS = "needs_more_slots"
CLASS_CAP = "class_cap"
SLOTS_KEPT = "slots_kept"
BATCH_FORMING = "batch_forming"
STARTING = "starting"


@dataclass(frozen=True, slots=True)
class Head:
    """The request that is next, and why it waits.

    reason: NO_ENGINE_READY; NO_FREE_SLOT: every slot is taken; NEEDS_MORE_SLOTS: some are free, but no
        replica has as many as it needs; CLASS_CAP: its class holds all it may, so others may go first;
        SLOTS_KEPT: those that are free are kept for tenants below their share or for short requests;
        BATCH_FORMING: held for company until `until`; STARTING: nothing keeps it.
    until: monotonic instant at which that ends even if nothing happens; None if nobody can know.
    """

    request: RuntimeRequest
    queued_at: float
    reason: str
    until: float | None = None


@quick
@dataclass(frozen=True, slots=True)
class Outlook:
    """What a request would meet in the queue, in the unit of `History.work`: about a generated token.

    work: its own. ahead: of those served before it. sheddable_ahead: the part of that which could be shed.
    num_sheddable: requests that could be, wherever they stand.
    overtaken_by: classes of which everybody who comes while it waits goes first. slot_share: of the slots,
    that its class may hold. prompt_s, answer_s: on an engine, until its first token and in all; 0 while
    nothing is known.
    """

    work: float = 1.0
    ahead: float = 0.0
    sheddable_ahead: float = 0.0
    num_sheddable: int = 0
    overtaken_by: tuple[PriorityClass, ...] = ()
    slot_share: float = 1.0
    prompt_s: float = 0.0
    answer_s: float = 0.0


class Scheduler(Protocol):
    def add(self, request: RuntimeRequest, now: float) -> None:
        """Queues it. Raises ValueError if the id is already queued."""
        ...

    def start(self, request: RuntimeRequest, now: float, room: Room) -> Placement | None:
        """`add`, `decide` and the news that it was dispatched in one, for a request that finds nobody waiting
        and room: what those would have made of it. None, with nothing changed: ask them."""
        ...

    def remove(self, request_id: str, now: float) -> bool:
        """Takes it out (client gone). False if it is not waiting."""
        ...

    def observe(self, event: SchedulingEvent, now: float) -> None: ...

    def decide(self, now: float, capacity: Capacity) -> Decision: ...

    def outlook(self, request: RuntimeRequest, now: float) -> Outlook:
        """As if it were added now. Changes nothing."""
        ...

    @property
    def prompt_weight(self) -> float:
        """Time of a computed prompt token by that of a generated one, from 0 to 1."""
        ...

    def make_room(self, num_requests: int, work: float, now: float) -> tuple[Eviction, ...]:
        """Takes out sheddable requests, of the lowest priority the latest first, until that many have left
        and that much work with them, or none is left."""
        ...

    def snapshot(self, now: float) -> QueueSnapshot: ...

    def head(self, now: float, capacity: Capacity) -> Head | None:
        """Who is next and what keeps it waiting; None: nobody waits. `capacity` is used up by this."""
        ...
