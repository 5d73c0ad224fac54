"""One pool's decisions, pure: events in, effects out. No task, no clock, no socket.

The dispatcher carries the effects out on the loop, the simulator in virtual time. What is decided, by
which rules and from which counts, is here and in the packages below; neither of the two repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from llm_runtime.admission.base import Load, MakeRoom
from llm_runtime.admission.capacity_gate import place_key
from llm_runtime.core.errors import LLMRuntimeError, QueueTimeout, Shed
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import USUAL_LEVELS, EndpointKind, RuntimeRequest
from llm_runtime.routing.router import Router
from llm_runtime.routing.verdict import may_try_here
from llm_runtime.runtime.capacity import DecisionCapacity, ReplicaSlots, Vacancy
from llm_runtime.runtime.flow_counts import FlowCounts
from llm_runtime.runtime.measures import Measures, Promises
from llm_runtime.scheduling.base import (
    Decision,
    Dispatched,
    Eviction,
    FirstToken,
    Head,
    QueueSnapshot,
    RequestFinished,
    Requeued,
    Scheduler,
)

MAX_ATTEMPTS = 3
RETRY_AFTER_EVICTION_S = 1.0


class Batch:
    """Requests to hand to one replica at once; they have left the queue."""

    __slots__ = ("replica", "request_ids")

    def __init__(self, replica: str, request_ids: tuple[str, ...]) -> None:
        self.replica: Final = replica
        self.request_ids: Final = request_ids

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return (self.replica, self.request_ids) == (other.replica, other.request_ids)

    def __hash__(self) -> int:
        return hash((self.replica, self.request_ids))

    def __repr__(self) -> str:
        return f"Batch({self.replica!r}, {self.request_ids!r})"


class Effects:
    """What to do now. What is named in `start` and `evict` has already left the queue.

    preempt: back to the queue, unless something was sent. shed: the same, but ended if something was.
    wake_at: monotonic instant at which to decide again even if nothing happens; None if no need.
    """

    __slots__ = ("evict", "preempt", "shed", "start", "wake_at")

    def __init__(
        self,
        start: tuple[Batch, ...] = (),
        evict: tuple[tuple[str, LLMRuntimeError], ...] = (),
        preempt: tuple[str, ...] = (),
        wake_at: float | None = None,
        shed: tuple[str, ...] = (),
    ) -> None:
        self.start: Final = start
        self.evict: Final = evict
        self.preempt: Final = preempt
        self.wake_at: Final = wake_at
        self.shed: Final = shed


class DecisionCore:
    """Owned by one dispatcher (or simulation), which alone calls it. Time is an argument.

    Its owner grants slots of `replicas` for all it is told to start before it asks again, and tells of
    every end by `finished` or `requeue`.
    """

    def __init__(
        self,
        replicas: Sequence[ReplicaSlots],
        scheduler: Scheduler,
        router: Router,
        *,
        adaptive_limit: bool = False,
    ) -> None:
        self._replicas: dict[str, ReplicaSlots] = {replica.id: replica for replica in replicas}
        self._measures = Measures(self._replicas, adaptive=adaptive_limit)
        self._limits = self._measures.limits
        self._vacancy = Vacancy(self._replicas, router, self._limits)
        self._nobody_waits = Load(num_waiting=0, would_wait=False, line=self._measures.line)
        self._scheduler = scheduler
        self._router = router
        self._waiting: dict[str, RuntimeRequest] = {}
        self._avoid: dict[str, Collection[str]] = {}
        self._stopped = False
        self.num_waiting_tokens = 0
        self.flows = FlowCounts()

    # ---- counts

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold slots, also those whose client has gone."""
        return sum(replica.num_held for replica in self._replicas.values())

    @property
    def num_slots(self) -> int:
        return sum(replica.num_slots for replica in self._replicas.values() if replica.ready)

    @property
    def num_free_slots(self) -> int:
        free = [self._limits.num_free(each) for each in self._replicas.values() if each.ready]
        return sum(max(num, 0) for num in free)

    @property
    def max_request_slots(self) -> int:
        """The largest `num_slots` a single request may have: all of its slots lie on one replica."""
        return max(replica.num_slots for replica in self._replicas.values())

    def load(self, request: RuntimeRequest, now: float) -> Load:
        """The pool as the capacity gate sees it when this request knocks."""
        limits, num_slots, could_start = self._limits, request.num_slots, False
        for replica in self._replicas.values():
            num_free = limits.num_free(replica, num_slots) if limits.any else replica.num_free
            if num_free >= num_slots and replica.ready and not replica.draining:
                could_start = True
                break
        if could_start and not self._waiting:
            return self._nobody_waits
        outlook = self._scheduler.outlook(request, now)
        would_wait = not could_start or outlook.ahead > 0
        return Load(
            num_waiting=len(self._waiting),
            would_wait=would_wait,
            num_sheddable=outlook.num_sheddable,
            work=outlook.work,
            forecast=self._measures.forecast(outlook, now) if would_wait else None,
            line=self._measures.line,
        )

    def predicted_waits(self, now: float) -> dict[str, float | None]:
        """By class, for a request of the usual size that would come now; None while nothing was measured."""
        waits: dict[str, float | None] = {}
        usual_tokens = math.ceil(self._measures.usual_work)
        for cls, level in USUAL_LEVELS.items():
            load = self.load(replace(PROBE, priority=level, max_tokens=usual_tokens), now)
            if not load.would_wait:
                waits[cls.value] = 0.0
            else:
                waits[cls.value] = None if load.forecast is None else load.forecast.wait_s
        return waits

    def in_force(self, replica_id: str) -> int:
        """Slots that may be held there now."""
        return self._limits.in_force(self._replicas[replica_id])

    @property
    def promises(self) -> Promises:
        return self._measures.promises

    def snapshot(self, now: float) -> QueueSnapshot:
        return self._scheduler.snapshot(now)

    def head(self, now: float) -> Head | None:
        """Who is next and what keeps it waiting; None: nobody waits."""
        if not self._waiting or self._stopped:
            return None
        return self._scheduler.head(now, DecisionCapacity(self._replicas, self._router, self._limits, now))

    # ---- events

    def add(self, request: RuntimeRequest, now: float) -> None:
        """Raises ValueError if the id is already queued."""
        self._scheduler.add(request, now)
        self._put(request)

    def start(self, request: RuntimeRequest, now: float) -> str | None:
        """`add` and `decide` in one, for a request that finds nobody waiting and room: the replica that gets
        it. None, with nothing changed: ask those."""
        if self._waiting or self._stopped:
            return None
        # Whom to avoid is known only of those that wait, so there is nothing to tell it of that.
        vacancy = self._vacancy
        vacancy.now = now
        placement = self._scheduler.start(request, now, vacancy)
        if placement is None:
            return None
        self._measures.started(request, placement.replica, placement.work, now)
        return placement.replica

    def withdraw(self, request_id: str, now: float) -> bool:
        """The request no longer wants to run. False: it was not waiting."""
        if self._take(request_id) is None:
            return False
        if not self._stopped:
            self._scheduler.remove(request_id, now)
            self._measures.waits(bool(self._waiting), now)
        return True

    def requeue(
        self, request: RuntimeRequest, queued_at: float, now: float, avoid: Collection[str] = ()
    ) -> None:
        """Back to its old place: it was started, but nothing of an answer exists. avoid: replicas that
        are to have it only if there is no other."""
        self._put(request)
        if avoid:
            self._avoid[request.id] = avoid
        self._measures.given_back(request.id, now)
        self._scheduler.observe(Requeued(request, queued_at), now)

    def first_token(self, request_id: str, now: float) -> None:
        """Its prompt is done: the engine has sent the first token."""
        self._scheduler.observe(FirstToken(request_id), now)

    def finished(self, request_id: str, usage: Usage | None, now: float) -> None:
        """It left its engine for good, in whatever way. usage: what was spent, None if unknown."""
        self._scheduler.observe(RequestFinished(request_id, usage), now)
        prompt_weight = self._scheduler.prompt_weight if self._limits.any else 0.0
        self._measures.left(request_id, usage, prompt_weight, now)

    def make_room(self, room: MakeRoom, now: float) -> tuple[tuple[str, LLMRuntimeError], ...]:
        """Sheds what a request that was let in needs to be gone."""
        if not room or self._stopped:
            return ()
        return self._evicted(self._scheduler.make_room(room.num_requests, room.work, now), now)

    def return_s(self, request: RuntimeRequest, now: float) -> float:
        """When a request that has left the queue unserved may come again, with a place for it: when what
        waits now has gone."""
        if self._stopped:
            return RETRY_AFTER_EVICTION_S
        outlook = self._scheduler.outlook(request, now)
        forecast = self._measures.forecast(outlook, now)
        if forecast is None:
            return RETRY_AFTER_EVICTION_S
        line = self._measures.line
        return line.give(place_key(request), outlook.work, forecast.wait_s, forecast.rate, now)

    def stop(self) -> None:
        """Nothing is decided any more, and the scheduler is not asked again."""
        self._stopped = True

    def _put(self, request: RuntimeRequest) -> None:
        self._waiting[request.id] = request
        self.num_waiting_tokens += num_tokens(request)
        self.flows.add(request, num_tokens(request))

    def _take(self, request_id: str) -> RuntimeRequest | None:
        request = self._waiting.pop(request_id, None)
        if request is not None:
            self._avoid.pop(request_id, None)
            self.num_waiting_tokens -= num_tokens(request)
            self.flows.remove(request, num_tokens(request))
        return request

    # ---- deciding

    def decide(self, now: float) -> Effects:
        if self._stopped or not self._waiting:
            self._measures.waits(False, now)
            return NOTHING
        capacity = DecisionCapacity(self._replicas, self._router, self._limits, now, self._avoid)
        decision = self._scheduler.decide(now, capacity)
        evicted = self._evicted(decision.evict, now) if decision.evict else ()
        started = self._started(decision, now)
        self._measures.waits(bool(self._waiting), now)
        return Effects(started, evicted, decision.preempt, decision.wake_at, decision.shed)

    def _evicted(self, evictions: Iterable[Eviction], now: float) -> tuple[tuple[str, LLMRuntimeError], ...]:
        evicted = []
        for eviction in evictions:
            request = self._take(eviction.request_id)
            if request is not None:
                evicted.append((request.id, eviction_error(eviction, self.return_s(request, now))))
        return tuple(evicted)

    def _started(self, decision: Decision, now: float) -> tuple[Batch, ...]:
        by_replica: dict[str, list[str]] = {}
        for placement in decision.dispatch:
            request = self._take(placement.request_id)
            assert request is not None, "the scheduler dispatched what is not waiting"
            self._scheduler.observe(Dispatched(request.id, placement.replica), now)
            self._measures.started(request, placement.replica, placement.work, now)
            by_replica.setdefault(placement.replica, []).append(request.id)
        return tuple(Batch(replica, tuple(ids)) for replica, ids in by_replica.items())


NOTHING = Effects()
PROBE = RuntimeRequest(id="", model="", kind=EndpointKind.CHAT, body={}, arrived_at=0.0, created=0)


def num_tokens(request: RuntimeRequest) -> int:
    """What a request counts in the queue: its prompt's estimate and its cap."""
    return request.num_prompt_tokens + request.max_tokens * request.num_slots


def eviction_error(eviction: Eviction, return_s: float) -> LLMRuntimeError:
    """What the client of an evicted request is told. return_s: when it may come again."""
    if eviction.reason == "queue_timeout":
        message = "The request waited longer than the queue time limit."
        return QueueTimeout(message, retry_after_s=return_s)
    message = "The request was dropped to make room."
    return Shed(message, reason=eviction.reason, retry_after_s=return_s)


def preempted_error() -> LLMRuntimeError:
    """What the client of a request is told whose slots went to a better class amid its answer."""
    message = "The request was stopped to make room for more urgent ones."
    return Shed(message, reason="preempted", retry_after_s=RETRY_AFTER_EVICTION_S)


def may_retry(error: LLMRuntimeError, *, begun: bool, num_attempts: int) -> bool:
    """Whether a request that an engine failed goes back to the queue, for any replica: no engine took it,
    nothing was sent, tries are left, and nobody said when to come back."""
    return not begun and num_attempts < MAX_ATTEMPTS and may_try_here(error)
