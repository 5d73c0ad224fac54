"""One pool's decisions, pure: events in, effects out. No task, no clock, no socket.

The dispatcher carries the effects out on the loop, the simulator in virtual time. What is decided, by
which rules and from which counts, is here and in the packages below; neither of the two repeats it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_runtime.admission.base import Load
from llm_runtime.core.errors import BackendUnavailable, LLMRuntimeError, QueueTimeout, Shed
from llm_runtime.core.outcome import Usage
from llm_runtime.core.quick import quick
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.routing.router import Router
from llm_runtime.runtime.capacity import DecisionCapacity, ReplicaSlots
from llm_runtime.runtime.flow_counts import FlowCounts
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


@quick
@dataclass(frozen=True, slots=True)
class Batch:
    """Requests to hand to one replica at once; they have left the queue."""

    replica: str
    request_ids: tuple[str, ...]


@quick
@dataclass(frozen=True, slots=True)
class Effects:
    """What to do now. What is named in `start` and `evict` has already left the queue.

    preempt: back to the queue, unless something was sent. shed: the same, but ended if something was.
    wake_at: monotonic instant at which to decide again even if nothing happens; None if no need.
    """

    start: tuple[Batch, ...] = ()
    evict: tuple[tuple[str, LLMRuntimeError], ...] = ()
    preempt: tuple[str, ...] = ()
    wake_at: float | None = None
    shed: tuple[str, ...] = ()


class DecisionCore:
    """Owned by one dispatcher (or simulation), which alone calls it. Time is an argument.

    Its owner grants slots of `replicas` for all it is told to start before it asks again, and tells of
    every end by `finished` or `requeue`.
    """

    def __init__(self, replicas: Sequence[ReplicaSlots], scheduler: Scheduler, router: Router) -> None:
        self._replicas: dict[str, ReplicaSlots] = {replica.id: replica for replica in replicas}
        self._scheduler = scheduler
        self._router = router
        self._waiting: dict[str, RuntimeRequest] = {}
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
        return sum(max(replica.num_free, 0) for replica in self._replicas.values() if replica.ready)

    @property
    def max_request_slots(self) -> int:
        """The largest `num_slots` a single request may have: all of its slots lie on one replica."""
        return max(replica.num_slots for replica in self._replicas.values())

    def load(self, request: RuntimeRequest) -> Load:
        """The pool as the capacity gate sees it when this request knocks."""
        num_running = num_slots = free = 0
        for replica in self._replicas.values():
            num_running += replica.num_held
            if replica.ready:
                num_slots += replica.num_slots
                free += max(replica.num_free, 0)
        return Load(
            num_waiting=len(self._waiting),
            num_waiting_tokens=self.num_waiting_tokens,
            num_running=num_running,
            num_slots=num_slots,
            num_free_slots=free,
            would_wait=bool(self._waiting) or free < request.num_slots,
        )

    def snapshot(self, now: float) -> QueueSnapshot:
        return self._scheduler.snapshot(now)

    def head(self, now: float) -> Head | None:
        """Who is next and what keeps it waiting; None: nobody waits."""
        if not self._waiting or self._stopped:
            return None
        return self._scheduler.head(now, DecisionCapacity(self._replicas, self._router, now))

    # ---- events

    def add(self, request: RuntimeRequest, now: float) -> None:
        """Raises ValueError if the id is already queued."""
        self._scheduler.add(request, now)
        self._put(request)

    def withdraw(self, request_id: str, now: float) -> bool:
        """The request no longer wants to run. False: it was not waiting."""
        if self._take(request_id) is None:
            return False
        if not self._stopped:
            self._scheduler.remove(request_id, now)
        return True

    def requeue(self, request: RuntimeRequest, queued_at: float, now: float) -> None:
        """Back to its old place: it was started, but nothing of an answer exists."""
        self._put(request)
        self._scheduler.observe(Requeued(request, queued_at), now)

    def first_token(self, request_id: str, now: float) -> None:
        """Its prompt is done: the engine has sent the first token."""
        self._scheduler.observe(FirstToken(request_id), now)

    def finished(self, request_id: str, usage: Usage | None, now: float) -> None:
        """It left its engine for good, in whatever way. usage: what was spent, None if unknown."""
        self._scheduler.observe(RequestFinished(request_id, usage), now)

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
            self.num_waiting_tokens -= num_tokens(request)
            self.flows.remove(request, num_tokens(request))
        return request

    # ---- deciding

    def decide(self, now: float) -> Effects:
        if self._stopped or not self._waiting:
            return NOTHING
        decision = self._scheduler.decide(now, DecisionCapacity(self._replicas, self._router, now))
        evicted = [
            (eviction.request_id, eviction_error(eviction))
            for eviction in decision.evict
            if self._take(eviction.request_id) is not None
        ]
        started = self._started(decision, now)
        return Effects(started, tuple(evicted), decision.preempt, decision.wake_at, decision.shed)

    def _started(self, decision: Decision, now: float) -> tuple[Batch, ...]:
        by_replica: dict[str, list[str]] = {}
        for placement in decision.dispatch:
            request = self._take(placement.request_id)
            assert request is not None, "the scheduler dispatched what is not waiting"
            self._scheduler.observe(Dispatched(request.id, placement.replica), now)
            by_replica.setdefault(placement.replica, []).append(request.id)
        return tuple(Batch(replica, tuple(ids)) for replica, ids in by_replica.items())


NOTHING = Effects()


def num_tokens(request: RuntimeRequest) -> int:
    """What a request counts in the queue: its prompt's estimate and its cap."""
    return request.num_prompt_tokens + request.max_tokens * request.num_slots


def eviction_error(eviction: Eviction) -> LLMRuntimeError:
    """What the client of an evicted request is told."""
    if eviction.reason == "queue_timeout":
        message = "The request waited longer than the queue time limit."
        return QueueTimeout(message, retry_after_s=RETRY_AFTER_EVICTION_S)
    message = "The request was dropped to make room."
    return Shed(message, reason=eviction.reason, retry_after_s=RETRY_AFTER_EVICTION_S)


def preempted_error() -> LLMRuntimeError:
    """What the client of a request is told whose slots went to a better class amid its answer."""
    message = "The request was stopped to make room for more urgent ones."
    return Shed(message, reason="preempted", retry_after_s=RETRY_AFTER_EVICTION_S)


def may_retry(error: LLMRuntimeError, *, begun: bool, num_attempts: int) -> bool:
    """Whether a request that an engine failed goes back to the queue: no engine took it, nothing was
    sent, tries are left, and nobody said when to come back."""
    return (
        isinstance(error, BackendUnavailable)
        and not begun
        and num_attempts < MAX_ATTEMPTS
        and error.retry_after_s is None
    )
