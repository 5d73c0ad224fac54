"""The shell around the pure decision core: carries out what the scheduler decides, for one pool.

Everything here is synchronous and runs on the loop's thread. It is woken by events (a request came,
a lease became free, an engine changed state) and by one timer at the instant the scheduler asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendUnavailable, LLMRuntimeError, QueueTimeout, Shed
from llm_runtime.core.events import Events
from llm_runtime.core.lease import Lease
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.engines.base import BackendState, Work
from llm_runtime.routing.router import Router
from llm_runtime.runtime.handles import RequestHandle
from llm_runtime.runtime.replica import Replica
from llm_runtime.scheduling.base import (
    Dispatched,
    Eviction,
    Placement,
    QueueSnapshot,
    RequestFinished,
    Requeued,
    Scheduler,
)


class _DecisionCapacity:
    """`scheduling.base.Capacity` for one decision: the router over views that count its placements."""

    def __init__(self, replicas: Sequence[Replica], router: Router, now: float) -> None:
        self._replicas = [replica for replica in replicas if replica.ready and not replica.draining]
        self._router = router
        self._now = now
        self._placed: dict[str, int] = {}

    def place(self, request: RuntimeRequest) -> str | None:
        placed = self._placed
        views = [replica.view(placed.get(replica.id, 0)) for replica in self._replicas]
        chosen = self._router.choose(request, views, self._now)
        if chosen is not None:
            placed[chosen] = placed.get(chosen, 0) + request.num_slots
        return chosen

    def _num_free(self, replica: Replica) -> int:
        return replica.num_free - self._placed.get(replica.id, 0)

    @property
    def exhausted(self) -> bool:
        return all(self._num_free(replica) <= 0 for replica in self._replicas)

    @property
    def batch_limit(self) -> int | None:
        limits = [self._num_free(replica) for replica in self._replicas if replica.is_static]
        return max(limits) if limits else None


class Dispatcher:
    """One per pool, owned by the runtime. Handles enter by `enqueue` and leave by `withdraw` or a grant."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        scheduler: Scheduler,
        router: Router,
        *,
        events: Events,
        clock: Clock,
        cancel_timeout_s: float,
    ) -> None:
        self.replicas: Mapping[str, Replica] = {replica.id: replica for replica in replicas}
        self._scheduler = scheduler
        self._router = router
        self._events = events
        self._clock = clock
        self._cancel_timeout_s = cancel_timeout_s
        self._waiting: dict[str, RequestHandle] = {}
        self._running: dict[Lease, RequestHandle] = {}
        self._cancel_timers: dict[Lease, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._deciding = False
        self._decide_again = False
        self.num_waiting_tokens = 0

    # ---- what the gates and the operator see

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return sum(len(replica.leases) for replica in self.replicas.values())

    @property
    def num_slots(self) -> int:
        return sum(replica.num_slots for replica in self.replicas.values() if replica.ready)

    @property
    def num_free_slots(self) -> int:
        return sum(max(replica.num_free, 0) for replica in self.replicas.values() if replica.ready)

    @property
    def max_request_slots(self) -> int:
        """The largest `num_slots` a single request may have: all of its slots lie on one replica."""
        return max(replica.num_slots for replica in self.replicas.values())

    def snapshot(self) -> QueueSnapshot:
        return self._scheduler.snapshot(self._clock.now())

    # ---- the queue

    def enqueue(self, handle: RequestHandle) -> None:
        """Queues it and decides at once: an idle engine starts before this returns."""
        request = handle.request
        now = self._clock.now()
        self._scheduler.add(request, now)
        handle.timeline.queued_at = now
        self._waiting[request.id] = handle
        self.num_waiting_tokens += _tokens(request)
        self.kick()

    def withdraw(self, handle: RequestHandle) -> None:
        """The request no longer wants to run. Harmless once it has been dispatched."""
        if self._take(handle.request.id) is not None:
            self._scheduler.remove(handle.request.id, self._clock.now())
            self.kick()

    def requeue(self, handle: RequestHandle) -> None:
        """Back to its old place: it was dispatched, but nothing of an answer exists."""
        request = handle.request
        queued_at = handle.timeline.queued_at
        assert queued_at is not None
        self._waiting[request.id] = handle
        self.num_waiting_tokens += _tokens(request)
        self._scheduler.observe(Requeued(request, queued_at), self._clock.now())
        self.kick()

    def _take(self, request_id: str) -> RequestHandle | None:
        handle = self._waiting.pop(request_id, None)
        if handle is not None:
            self.num_waiting_tokens -= _tokens(handle.request)
        return handle

    # ---- deciding

    def kick(self) -> None:
        """Asks the scheduler and carries its decision out. Safe to call from anywhere on the loop."""
        if self._deciding:
            self._decide_again = True
            return
        self._deciding = True
        try:
            self._decide_again = True
            while self._decide_again:
                self._decide_again = False
                self._decide()
        finally:
            self._deciding = False

    def _decide(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        if self._fail_if_hopeless():
            return
        now = self._clock.now()
        capacity = _DecisionCapacity(list(self.replicas.values()), self._router, now)
        decision = self._scheduler.decide(now, capacity)
        for eviction in decision.evict:
            self._evict(eviction)
        for request_id in decision.preempt:
            self._preempt(request_id)
        if decision.dispatch:
            self._dispatch(decision.dispatch, now)
        if decision.wake_at is not None:
            delay_s = max(decision.wake_at - self._clock.now(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.kick)

    def _dispatch(self, placements: Sequence[Placement], now: float) -> None:
        by_replica: dict[str, list[str]] = {}
        for placement in placements:
            by_replica.setdefault(placement.replica, []).append(placement.request_id)
        for replica_id, request_ids in by_replica.items():
            self._open(self.replicas[replica_id], request_ids, now)

    def _open(self, replica: Replica, request_ids: Sequence[str], now: float) -> None:
        works: list[Work] = []
        handles: list[RequestHandle] = []
        for request_id in request_ids:
            handle = self._take(request_id)
            assert handle is not None, "the scheduler dispatched what is not waiting"
            request = handle.request
            lease = Lease(request_id, replica.id, request.num_slots, now, self._freed)
            replica.hold(lease)
            self._running[lease] = handle
            works.append(Work(request, lease))
            handles.append(handle)
            self._scheduler.observe(Dispatched(request_id, replica.id), now)
            queued_at = handle.timeline.queued_at
            self._events.dispatched(request, replica.id, now - queued_at if queued_at is not None else 0.0)
        if replica.is_static:
            self._events.batch(replica.id, len(works))
        run = replica.backend.open(works)
        for handle, work in zip(handles, works, strict=True):
            handle.granted(work.lease, run, now)

    def _evict(self, eviction: Eviction) -> None:
        handle = self._take(eviction.request_id)
        if handle is None:
            return
        error: LLMRuntimeError
        if eviction.reason == "queue_timeout":
            error = QueueTimeout("The request waited longer than the queue time limit.", retry_after_s=1.0)
        else:
            error = Shed("The request was dropped to make room.", reason=eviction.reason, retry_after_s=1.0)
        handle.fail(error)

    def _preempt(self, request_id: str) -> None:
        for lease, handle in self._running.items():
            if lease.request_id == request_id:
                handle.preempt()

    def _fail_if_hopeless(self) -> bool:
        """No engine is up and none will come back: waiting is pointless, so say so now."""
        states = [replica.backend.status for replica in self.replicas.values()]
        if not all(status.state in (BackendState.FAILED, BackendState.STOPPED) for status in states):
            return False
        reason = next((status.reason for status in states if status.reason), "the engine is stopped")
        for request_id, handle in list(self._waiting.items()):
            self._take(request_id)
            self._scheduler.remove(request_id, self._clock.now())
            handle.fail(BackendUnavailable(f"No engine is available: {reason}"))
        return True

    # ---- leases

    def cancelling(self, lease: Lease) -> None:
        """The engine was asked to stop; if it does not confirm in time the lease turns suspect."""
        lease.cancelling(self._clock.now())
        if lease.held and lease not in self._cancel_timers:
            loop = asyncio.get_running_loop()
            self._cancel_timers[lease] = loop.call_later(self._cancel_timeout_s, self._turn_suspect, lease)

    def _turn_suspect(self, lease: Lease) -> None:
        self._cancel_timers.pop(lease, None)
        if lease.held:
            lease.suspect()
            self._events.lease_suspect(lease.replica, lease.request_id)

    def _freed(self, lease: Lease) -> None:
        timer = self._cancel_timers.pop(lease, None)
        if timer is not None:
            timer.cancel()
        handle = self._running.pop(lease)
        self.replicas[lease.replica].release(lease)
        self._scheduler.observe(RequestFinished(lease.request_id, handle.usage), self._clock.now())
        self.kick()

    def close(self) -> None:
        """Stops the timers; called once nothing waits any more."""
        for timer in (self._timer, *self._cancel_timers.values()):
            if timer is not None:
                timer.cancel()
        self._cancel_timers.clear()


def _tokens(request: RuntimeRequest) -> int:
    return request.num_prompt_tokens + request.max_tokens * request.num_slots
