"""The shell around the pure decision core: carries out what the scheduler decides, for one pool.

Everything here is synchronous and runs on the loop's thread. It is woken by events (a request came,
a lease became free, an engine changed state) and by one timer at the instant the scheduler asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from llm_runtime.admission.base import Load, MakeRoom
from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendError, BackendUnavailable, LLMRuntimeError
from llm_runtime.core.events import Events
from llm_runtime.core.lease import Lease
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.engines.base import BackendState, BackendStatus, Run, Work
from llm_runtime.routing.config import RoutingConfig
from llm_runtime.routing.router import Router
from llm_runtime.runtime.decision import DecisionCore, preempted_error
from llm_runtime.runtime.failed_run import FailedRun
from llm_runtime.runtime.failover import Failover
from llm_runtime.runtime.flow_counts import Flow, Waiting
from llm_runtime.runtime.leases import LeaseBook
from llm_runtime.runtime.measures import Promises
from llm_runtime.runtime.replica import Replica
from llm_runtime.runtime.request_handle import RequestHandle
from llm_runtime.scheduling.base import Head, QueueSnapshot, Scheduler

log = structlog.get_logger(__name__)

DEFAULT_ROUTING = RoutingConfig()


class Dispatcher:
    """One per pool, owned by the runtime. Handles enter by `enqueue` and leave by `withdraw` or a grant.

    on_failure: told in words when deciding itself has failed; requests may be lost in the scheduler
    then, so nothing here can be trusted any more.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        scheduler: Scheduler,
        router: Router,
        *,
        events: Events,
        clock: Clock,
        cancel_timeout_s: float,
        routing: RoutingConfig = DEFAULT_ROUTING,
        adaptive_limit: bool = False,
    ) -> None:
        self.replicas: Final[dict[str, Replica]] = {replica.id: replica for replica in replicas}
        self.on_failure: Callable[[str], None] | None = None
        self.failover = Failover(self.replicas, routing, events=events, clock=clock)
        self._core = DecisionCore(replicas, scheduler, router, adaptive_limit=adaptive_limit)
        self._events = events
        self._now: Final = clock.now
        self._leases = LeaseBook(self._freed, events=events, clock=clock, cancel_timeout_s=cancel_timeout_s)
        self._waiting: dict[str, RequestHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._deciding = False
        self._decide_again = False
        self._stopped = False
        self._left_alone: set[str] = set()
        for replica in replicas:
            replica.health.on_change = partial(self._health_changed, replica)

    # ---- what the gates and the operator see

    @property
    def num_waiting(self) -> int:
        return self._core.num_waiting

    @property
    def num_waiting_tokens(self) -> int:
        return self._core.num_waiting_tokens

    @property
    def num_running(self) -> int:
        return self._core.num_running

    @property
    def num_slots(self) -> int:
        return self._core.num_slots

    @property
    def num_free_slots(self) -> int:
        return self._core.num_free_slots

    @property
    def max_request_slots(self) -> int:
        return self._core.max_request_slots

    def load(self, request: RuntimeRequest, now: float) -> Load:
        """For the capacity gate."""
        return self._core.load(request, now)

    def predicted_waits(self) -> dict[str, float | None]:
        """Seconds by priority class, for one request that would come now; None while nothing was measured."""
        return self._core.predicted_waits(self._now())

    def in_force(self, replica_id: str) -> int:
        """Slots of it that may be held: all of them, or fewer by the adaptive limit."""
        return self._core.in_force(replica_id)

    @property
    def promises(self) -> Promises:
        return self._core.promises

    def holds(self, request_id: str) -> bool:
        """Whether an engine still has slots under that name, also for a request that has ended."""
        return request_id in self._leases.by_request

    def snapshot(self) -> QueueSnapshot:
        return self._core.snapshot(self._now())

    def head(self) -> Head | None:
        """Who is next and what keeps it waiting; None: nobody waits."""
        return self._core.head(self._now())

    @property
    def flows(self) -> Mapping[Flow, Waiting]:
        """What waits, by class and tenant."""
        return self._core.flows.by_flow

    def waiting(self) -> Iterator[tuple[RuntimeRequest, float]]:
        """Each request that waits, with the instant it was queued; nearly in that order."""
        for handle in self._waiting.values():
            queued_at = handle.timeline.queued_at
            assert queued_at is not None
            yield handle.request, queued_at

    def running(self) -> Iterator[RuntimeRequest]:
        return self._leases.requests

    # ---- the queue

    def enqueue(self, handle: RequestHandle) -> None:
        """Queues it and decides at once: an idle engine starts before this returns."""
        now = self._now()
        handle.timeline.queued_at = now
        if not self._waiting and not self._deciding and self._started(handle, now):
            return
        request_id = handle.request.id
        self._core.add(handle.request, now)
        self._waiting[request_id] = handle
        self.kick()
        if request_id in self._waiting:
            self._fail_hopeless([handle])

    def _started(self, handle: RequestHandle, now: float) -> bool:
        """Whether it could be handed to an engine without having been queued."""
        self._deciding = True
        try:
            replica_id = self._core.start(handle.request, now)
            if replica_id is None:
                return False
            replica = self.replicas[replica_id]
            work = self._granted(replica, handle, now)
            if replica.is_static:
                self._events.batch(replica_id, 1)
            handle.granted(work.lease, _start(replica, [work]), now)
        except Exception:
            self._failed()
        finally:
            self._deciding = False
        if self._decide_again:
            self.kick()
        return True

    def make_room(self, room: MakeRoom) -> None:
        """Sheds what has to go before a request that was let in is queued."""
        for request_id, error in self._core.make_room(room, self._now()):
            self._waiting.pop(request_id).fail(error)

    def withdraw(self, handle: RequestHandle) -> None:
        """The request no longer wants to run. Harmless once it has been dispatched."""
        request_id = handle.request.id
        if self._waiting.get(request_id) is handle:
            del self._waiting[request_id]
            self._core.withdraw(request_id, self._now())
            self.kick()

    def give_up(self, handle: RequestHandle) -> float:
        """As `withdraw`, of a request whose time is up. Seconds until it may come again, with a place for
        it."""
        self.withdraw(handle)
        return self._core.return_s(handle.request, self._now())

    def requeue(self, handle: RequestHandle, lease: Lease) -> None:
        """Back to its old place: it was dispatched, but nothing of an answer exists. `lease` is what it
        ran under, which the engine may not have let go of yet."""
        queued_at = handle.timeline.queued_at
        assert queued_at is not None
        self._leases.give_back(lease)
        self._waiting[handle.request.id] = handle
        self._core.requeue(handle.request, queued_at, self._now(), handle.attempts.failed_on)
        self.kick()
        self._fail_hopeless([handle])

    def first_token(self, request_id: str) -> None:
        """For handles: the engine has sent the first token. Others may have waited for that."""
        self._core.first_token(request_id, self._now())
        if self._waiting:
            self.kick()

    def replica_changed(self) -> None:
        """An engine is there or gone, or a replica may be used again or not."""
        self._fail_hopeless(tuple(self._waiting.values()))
        self.kick()

    def _health_changed(self, replica: Replica) -> None:
        is_open = replica.health.is_open
        if is_open is not (replica.id in self._left_alone):
            self._left_alone ^= {replica.id}
            status = replica.status
            self._events.engine_state(replica.id, status.state.value, status.reason)
        self.replica_changed()

    # ---- deciding

    def kick(self) -> None:
        """Asks the scheduler and carries its decision out. Safe to call from anywhere on the loop, also
        from within what a decision causes; never raises."""
        self._decide_again = True
        if self._deciding:
            return
        self._deciding = True
        try:
            while self._decide_again and not self._stopped:
                self._decide_again = False
                self._decide()
        except Exception:
            self._failed()
        finally:
            self._deciding = False

    def _failed(self) -> None:
        log.exception("dispatcher.failed")
        self.stop()
        if self.on_failure is not None:
            self.on_failure("the dispatcher failed")

    def stop(self) -> None:
        """Nothing is dispatched from now on; what waits is for its owner to fail. Idempotent."""
        self._stopped = True
        self._core.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stops everything, the timers of cancelled leases included."""
        self.stop()
        self._leases.close()
        for replica in self.replicas.values():
            replica.health.close()

    def _decide(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        now = self._now()
        effects = self._core.decide(now)
        for request_id, error in effects.evict:
            self._waiting.pop(request_id).fail(error)
        for request_id in effects.preempt:
            self._preempt(request_id, None)
        for request_id in effects.shed:
            self._preempt(request_id, preempted_error())
        for batch in effects.start:
            handles = [self._waiting.pop(request_id) for request_id in batch.request_ids]
            self._open(self.replicas[batch.replica], handles, now)
        if effects.wake_at is not None:
            delay_s = max(effects.wake_at - self._now(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.kick)

    def _open(self, replica: Replica, handles: Sequence[RequestHandle], now: float) -> None:
        works = [self._granted(replica, handle, now) for handle in handles]
        if replica.is_static:
            self._events.batch(replica.id, len(works))
        run = _start(replica, works)
        for handle, work in zip(handles, works, strict=True):
            handle.granted(work.lease, run, now)

    def _granted(self, replica: Replica, handle: RequestHandle, now: float) -> Work:
        """The request with its slots, for the engine."""
        request = handle.request
        lease = self._leases.grant(replica, handle, now)
        queued_at = handle.timeline.queued_at
        assert queued_at is not None
        self._events.dispatched(request, replica.id, now - queued_at)
        return Work(request, lease, self.failover.is_last(request, handle.attempts))

    def _preempt(self, request_id: str, error: LLMRuntimeError | None) -> None:
        handle = self._leases.holder(request_id)
        if handle is not None:
            handle.preempt(error)

    def _fail_hopeless(self, handles: Sequence[RequestHandle]) -> None:
        """No engine that has the model is up and none will come back soon: waiting is pointless, so say so
        now. Of those that still wait."""
        handles = [handle for handle in handles if self._waiting.get(handle.request.id) is handle]
        if not handles:
            return
        hopeless = [replica for replica in self.replicas.values() if _is_hopeless(replica.status)]
        if not hopeless:
            return
        others = [replica for replica in self.replicas.values() if replica not in hopeless]
        reason = next((r.status.reason for r in hopeless if r.status.reason), "the engine is stopped")
        now = self._now()
        waits_s = [wait_s for r in hopeless if (wait_s := r.health.closed_in_s(now)) is not None]
        retry_after_s = min(waits_s, default=None)
        for handle in handles:
            request = handle.request
            if any(replica.serves(request.model) for replica in others):
                continue
            del self._waiting[request.id]
            self._core.withdraw(request.id, now)
            handle.fail(BackendUnavailable(f"No engine is available: {reason}", retry_after_s=retry_after_s))

    # ---- leases

    def cancelling(self, lease: Lease) -> None:
        """For handles, just before they ask the engine to stop."""
        self._leases.cancelling(lease)

    def _freed(self, lease: Lease, handle: RequestHandle, was_given_back: bool) -> None:
        if not was_given_back:
            self._core.finished(lease.request_id, handle.usage, self._now())
        if self._waiting or self._deciding or self._timer is not None:
            self.kick()


def _start(replica: Replica, works: Sequence[Work]) -> Run:
    try:
        return replica.backend.open(works)
    except Exception as raised:
        # The seam forbids it, but slots must not be lost over it, nor the other requests.
        log.exception("engine.open_failed", replica=replica.id)
        for work in works:
            work.lease.free()
        if isinstance(raised, LLMRuntimeError):
            return FailedRun(raised)
        return FailedRun(BackendError("The engine could not take the request."))


def _is_hopeless(status: BackendStatus) -> bool:
    state = status.state
    return status.fail_fast or state is BackendState.FAILED or state is BackendState.STOPPED
