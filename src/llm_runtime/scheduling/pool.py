"""`PoolScheduler`: bands x flows x order, batch formation, queue deadlines.

What it guarantees: every request added leaves exactly once (dispatched, evicted or removed); between
two events it answers the same; add, remove and each dispatch cost O(log n), however many wait.
"""

from __future__ import annotations

from typing import Final

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import PriorityClass, RuntimeRequest, priority_class
from llm_runtime.scheduling.bands import Bands
from llm_runtime.scheduling.base import (
    Capacity,
    Decision,
    Dispatched,
    Eviction,
    FirstToken,
    Head,
    Outlook,
    Placement,
    QueueSnapshot,
    RequestFinished,
    Room,
    Scheduler,
    SchedulingEvent,
)
from llm_runtime.scheduling.batching import BatchFormer, Queue
from llm_runtime.scheduling.caps import ClassCaps
from llm_runtime.scheduling.flows import shape_of
from llm_runtime.scheduling.history import History
from llm_runtime.scheduling.lateness import hopeless_at
from llm_runtime.scheduling.order import Running, Waiting
from llm_runtime.scheduling.preemption import Preemption
from llm_runtime.scheduling.reserve import Reserve
from llm_runtime.scheduling.totals import Pass
from llm_runtime.scheduling.waiting_list import SHEDDABLE, WaitingList, is_sheddable
from llm_runtime.scheduling.why import Obstacles, why_it_waits

QUEUE_TIMEOUT: Final = "queue_timeout"
SHED: Final = "shed"
WOULD_MISS_DEADLINE: Final = "would_miss_deadline"
_BEFORE_ALL_SEQ: Final = -(2**53)


class PoolScheduler(Scheduler):
    """One pool's queue. Owned by its dispatcher, called from the loop's thread only.

    max_skip_s: a request that fits nowhere, first of its shape, may be passed by later ones for so
    long, counted from the first time one did pass; then nothing passes it until it has run, so that
    free slots gather for it. That ends of itself when nothing is running any more: then no further slot
    can become free, and holding the others back would help nobody.

    history: what ended requests teach; caps: of classes; evict_hopeless: whether requests that can no
    longer meet their deadline leave the queue; preemption, reserve: None for none.
    """

    def __init__(
        self,
        bands: Bands,
        batching: BatchFormer,
        *,
        max_skip_s: float,
        history: History | None = None,
        caps: ClassCaps | None = None,
        evict_hopeless: bool = False,
        preemption: Preemption | None = None,
        reserve: Reserve | None = None,
    ) -> None:
        self._bands = bands
        self._batching = batching
        self._max_skip_s = max_skip_s
        self._history = history or History()
        self._caps = caps
        self._evict_hopeless = evict_hopeless
        self._preemption = preemption
        self._reserve = reserve
        self._waiting = WaitingList()
        self._running: dict[str, Running] = {}
        self._next_seq = 0
        self._next_early_seq = _BEFORE_ALL_SEQ
        extras = (caps, preemption, reserve)
        self._is_plain = bands.is_trackless and not evict_hopeless and extras == (None, None, None)

    # ---- in and out

    def add(self, request: RuntimeRequest, now: float) -> None:
        if request.id in self._waiting:
            raise ValueError(f"request {request.id} is already queued")
        queue_s = request.limits.queue_s
        queue_until = None if queue_s is None else now + queue_s
        self._push(Waiting(request, now, self._next_seq, queue_until))
        self._next_seq += 1
        self._batching.arrived(len(self._waiting), now)

    def start(self, request: RuntimeRequest, now: float, room: Room) -> Placement | None:
        if not self._is_plain or len(self._waiting) or room.batch_limit is not None:
            return None
        queue_s = request.limits.queue_s
        if queue_s is not None and queue_s <= 0:
            return None
        replica = room.place(request)
        if replica is None:
            return None
        work = self._history.work(request)
        entry = Waiting(request, now, self._next_seq, None if queue_s is None else now + queue_s, work)
        entry.gone = True
        self._next_seq += 1
        request_id = request.id
        # When its prompt will be done is asked by caps, preemption and reserve, of which there is none.
        self._running[request_id] = Running(entry, replica, now, now)
        self._batching.started(request_id, replica, now)
        return Placement(request_id, replica, work)

    def remove(self, request_id: str, now: float) -> bool:
        entry = self._waiting.get(request_id)
        if entry is None:
            return False
        self._waiting.forget(entry)
        self._bands.drop(entry)
        return True

    def observe(self, event: SchedulingEvent, now: float) -> None:
        if isinstance(event, RequestFinished):
            self._batching.finished(event.request_id, now)
            running = self._running.pop(event.request_id, None)
            if running is not None:
                self._finish(running, event.usage, now)
        elif isinstance(event, FirstToken):
            running = self._running.get(event.request_id)
            if running is not None:
                self._begin(running, now)
        elif isinstance(event, Dispatched):
            self._batching.dispatched(event.request_id, event.replica, now)
        else:
            self._requeue(event.request, event.queued_at, now)

    def _begin(self, running: Running, now: float) -> None:
        running.has_token = True
        if running.entry.request.stream:  # a plain reply's first token is known with its last
            self._history.learn_prompt(running.entry.request, now - running.dispatched_at)
        if self._caps is not None:
            self._caps.first_token(running.entry.request, now)

    def _finish(self, running: Running, usage: Usage | None, now: float) -> None:
        entry = running.entry
        if not self._is_plain:  # then nobody keeps an account of it
            self._leave_engine(entry, usage)
        if usage is not None and usage.completion_tokens and not running.is_leaving:
            self._history.learn(entry.request, usage, now - running.dispatched_at, entry.predicted_s)

    def _leave_engine(self, entry: Waiting, usage: Usage | None) -> None:
        self._bands.settle(entry, usage)
        if self._caps is not None:
            self._caps.left(entry.request)
        if self._reserve is not None:
            self._reserve.left(entry.request)

    def _requeue(self, request: RuntimeRequest, queued_at: float, now: float) -> None:
        """Back to its old place. Time spent on the engine does not count against its waiting limit."""
        if request.id in self._waiting:
            return
        self._batching.finished(request.id, now, served=False)
        entry = Waiting(request, queued_at, self._next_early_seq)
        self._next_early_seq += 1
        queue_s = request.limits.queue_s
        running = self._running.pop(request.id, None)
        if running is not None:
            before = running.entry
            self._leave_engine(before, None)
            entry.seq = before.seq
            entry.num_preempted = before.num_preempted
            if before.queue_until is not None:
                entry.queue_until = now + (before.queue_until - running.dispatched_at)
        elif queue_s is not None:
            entry.queue_until = now + queue_s
        self._push(entry)

    def _push(self, entry: Waiting) -> None:
        if self._evict_hopeless:
            entry.hopeless_at = hopeless_at(entry.request, self._history)
        entry.work = self._history.work(entry.request)
        self._bands.push(entry)
        self._waiting.push(entry)
        if self._preemption is not None:
            self._preemption.came(entry)

    # ---- deciding

    def decide(self, now: float, capacity: Capacity) -> Decision:
        evict = self._evict_expired(now)
        if not self._waiting or capacity.exhausted:
            back, shed = self._victims(now, capacity)
            return Decision((), evict, back, self._waiting.next_deadline_at, shed)
        limit = capacity.batch_limit
        if limit is not None:
            queue = Queue(
                len(self._waiting), self._waiting.totals.num_slots, limit, self._waiting.next_deadline_at
            )
            held_until = self._batching.hold_until(queue, now)
            if held_until is not None:
                return Decision(evict=evict, wake_at=held_until)
        decided = self._place(now, capacity, limit)
        if limit is not None and decided.placed:
            self._batching.released()
        again = decided.batch_closed and not capacity.exhausted
        wake_at = now if again else self._waiting.next_deadline_at
        if decided.closed and self._reserve is not None and self._reserve.prompts is not None:
            wake_at = _earlier(wake_at, self._prompt_over_at(now))
        if decided.closed and self._caps is not None:
            wake_at = _earlier(wake_at, self._caps.wake_at(capacity.size, now))
        back, shed = self._victims(now, capacity)
        return Decision(tuple(decided.placed), evict, back, wake_at, shed)

    def _victims(self, now: float, capacity: Capacity) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Whom to send back, and whom to end if it has begun."""
        if self._preemption is None:
            return (), ()
        # Slots of a batch that runs from start to end are free when all of it has ended, not before.
        running = self._running if capacity.batch_limit is None else {}
        victims = self._preemption.victims(running, self._bands.before, now)
        return tuple(victims.back), tuple(victims.shed)

    def _evict_expired(self, now: float) -> tuple[Eviction, ...]:
        evicted: list[Eviction] = []
        while (entry := self._waiting.overdue(now)) is not None:
            self._waiting.forget(entry)
            self._bands.drop(entry)
            reason = WOULD_MISS_DEADLINE if entry.queue_until != entry.leaves_at else QUEUE_TIMEOUT
            evicted.append(Eviction(entry.request.id, reason))
        return tuple(evicted)

    def _place(self, now: float, capacity: Capacity, limit: int | None) -> Pass:
        decided = Pass()
        while not capacity.exhausted:
            entry = self._bands.head(decided.refused, decided.closed)
            if entry is None:
                break
            request = entry.request
            if not self._may_start(entry, capacity, now):
                # Whoever is favoured for something that changes is ahead of the rest of its class already.
                if entry.is_short:
                    decided.closed.add(priority_class(request.priority))
                else:
                    decided.refused.add(shape_of(entry))
                continue
            if limit is not None and not self._batching.may_add(
                len(decided.placed), decided.num_placed_slots, request.num_slots, limit
            ):
                decided.batch_closed = True
                decided.refused.add(shape_of(entry))
                continue
            replica = capacity.place(request)
            if replica is not None:
                self._take(entry, replica, decided, now)
            elif self._blocks(entry, now):
                break
            else:
                decided.refused.add(shape_of(entry))
                decided.passed_over.append(entry)
        return decided

    def _may_start(self, entry: Waiting, capacity: Capacity, now: float) -> bool:
        """As far as class caps and slots kept for others are concerned."""
        request, caps, reserve = entry.request, self._caps, self._reserve
        if caps is not None and not caps.allows(request, capacity.size, self._waiting.totals.by_class, now):
            return False
        if reserve is None:
            return True
        at_prompt = self._at_prompt(now) if reserve.prompts is not None else []
        is_favoured = self._bands.is_favoured(entry)
        return reserve.allows(request, capacity.size, is_favoured=is_favoured, num_at_prompt=len(at_prompt))

    def _at_prompt(self, now: float) -> list[Running]:
        return [each for each in self._running.values() if not each.at_work(now)]

    def _prompt_over_at(self, now: float) -> float | None:
        """When the first of those prompts should be done whose end nobody tells."""
        untold = [each.prompt_until for each in self._at_prompt(now) if not each.entry.request.stream]
        return min(untold, default=None)

    def _blocks(self, entry: Waiting, now: float) -> bool:
        """Whether an entry that does not fit may no longer be passed."""
        since = now if entry.passed_since is None else entry.passed_since
        return bool(self._running) and now >= since + self._max_skip_s

    def _take(self, entry: Waiting, replica: str, decided: Pass, now: float) -> None:
        for passed in decided.passed_over:
            if passed.passed_since is None:
                passed.passed_since = now
        self._waiting.forget(entry)
        if self._reserve is not None:
            self._reserve.started(entry.request, is_favoured=self._bands.is_favoured(entry))
        self._bands.take(entry)
        prefill_s = self._history.prompt_seconds(entry.request)
        self._running[entry.request.id] = Running(entry, replica, now, now + prefill_s)
        if self._caps is not None:
            self._caps.started(entry.request, now, prefill_s)
        decided.placed.append(Placement(entry.request.id, replica, entry.work))
        decided.num_placed_slots += entry.request.num_slots

    # ---- for the gate

    def outlook(self, request: RuntimeRequest, now: float) -> Outlook:
        entry = Waiting(request, now, self._next_seq, None, self._history.work(request))
        ahead = self._bands.ahead(entry)
        sheddable = 0.0
        if self._bands.is_single and not is_sheddable(request):
            sheddable = self._waiting.totals.work_by_class[SHEDDABLE]
        overtaken_by = tuple(cls for cls in PriorityClass if self._bands.overtakes(cls, request))
        history = self._history
        return Outlook(
            work=entry.work,
            ahead=ahead,
            sheddable_ahead=min(sheddable, ahead),
            num_sheddable=self._waiting.totals.by_class[SHEDDABLE],
            overtaken_by=overtaken_by,
            slot_share=1.0 if self._caps is None else self._caps.share_of(request),
            prompt_s=history.prompt_seconds(request),
            answer_s=history.seconds(request),
        )

    @property
    def prompt_weight(self) -> float:
        return self._history.prompt_weight

    def make_room(self, num_requests: int, work: float, now: float) -> tuple[Eviction, ...]:
        shed: list[Eviction] = []
        while (len(shed) < num_requests or work > 0) and (entry := self._waiting.first_to_shed) is not None:
            self._waiting.forget(entry)
            self._bands.drop(entry)
            work -= entry.work
            shed.append(Eviction(entry.request.id, SHED))
        return tuple(shed)

    # ---- looking

    def head(self, now: float, capacity: Capacity) -> Head | None:
        entry = self._bands.head((), ())
        if entry is None:
            return None
        obstacles = Obstacles(
            held_until=self._batching.held_until(now),
            caps=self._caps,
            waiting=self._waiting.totals.by_class,
            reserve=self._reserve,
            is_favoured=self._bands.is_favoured(entry),
            num_at_prompt=len(self._at_prompt(now)),
        )
        return why_it_waits(entry, capacity, obstacles, now)

    def snapshot(self, now: float) -> QueueSnapshot:
        oldest = self._waiting.oldest
        return QueueSnapshot(
            num_waiting=len(self._waiting),
            num_waiting_slots=self._waiting.totals.num_slots,
            num_waiting_tokens=self._waiting.totals.num_tokens,
            oldest_wait_s=0.0 if oldest is None else max(now - oldest.queued_at, 0.0),
            waiting_by_class={cls.value: num for cls, num in self._waiting.totals.by_class.items()},
            work_by_class={cls.value: work for cls, work in self._waiting.totals.work_by_class.items()},
            details={
                "num_running": len(self._running),
                "batch_service_s": self._batching.service_s,
                "batch_join_chance": self._batching.join_chance,
            },
        )


def _earlier(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
