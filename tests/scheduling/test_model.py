"""The scheduler against a naive model: same decisions, and every request leaves exactly once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.scheduling.pools import FakePool, FakeReplica, make_request

MAX_SKIP_S = 0.25
INTERVAL_S = 0.5
BASE = SchedulingConfig(max_skip_s=MAX_SKIP_S)
CONFIGS = [
    BASE,
    replace(BASE, policy="priority"),
    replace(BASE, policy="priority", priority_aging_boost_interval_s=INTERVAL_S),
]


@dataclass
class Item:
    id: str
    level: int
    num_slots: int
    queued_at: float
    seq: int
    deadline_at: float | None
    passed_since: float | None = None
    dispatched_at: float = 0.0


class Model:
    """A list, sorted anew at every decision by the documented formula."""

    def __init__(self, config: SchedulingConfig) -> None:
        self.config = config
        self.waiting: list[Item] = []
        self.running: dict[str, Item] = {}

    def key(self, item: Item) -> tuple[float, ...]:
        if self.config.policy == "fifo":
            return (item.queued_at, item.seq)
        interval_s = self.config.priority_aging_boost_interval_s
        if interval_s is None:
            return (item.level, item.queued_at, item.seq)
        return (item.level * interval_s + item.queued_at, item.level, item.queued_at, item.seq)

    def decide(self, now: float, num_free: int) -> tuple[list[str], list[str], float | None]:
        due = [i for i in self.waiting if i.deadline_at is not None and i.deadline_at <= now]
        due.sort(key=lambda item: (item.deadline_at, item.seq))
        self.waiting = [item for item in self.waiting if item not in due]
        dispatched: list[Item] = []
        passed: list[Item] = []
        refused: set[int] = set()
        for item in sorted(self.waiting, key=self.key):
            if num_free == 0:
                break
            if item.num_slots in refused:
                continue
            if item.num_slots <= num_free:
                num_free -= item.num_slots
                dispatched.append(item)
                for other in passed:
                    other.passed_since = now if other.passed_since is None else other.passed_since
            else:
                since = now if item.passed_since is None else item.passed_since
                if (self.running or dispatched) and now - since >= MAX_SKIP_S:
                    break
                refused.add(item.num_slots)
                passed.append(item)
        for item in dispatched:
            self.waiting.remove(item)
            item.dispatched_at = now
            self.running[item.id] = item
        deadlines = [item.deadline_at for item in self.waiting if item.deadline_at is not None]
        return [i.id for i in dispatched], [i.id for i in due], min(deadlines, default=None)


class Both:
    """The scheduler and the model side by side. `left` counts how often each request left for good."""

    def __init__(self, config: SchedulingConfig, num_slots: int) -> None:
        self.now = 0.0
        self.pool = FakePool(build_scheduler(config), FakeReplica(num_slots))
        self.model = Model(config)
        self.num_added = 0
        self.left: Counter[str] = Counter()

    def add(self, level: int, num_slots: int, queue_s: float | None) -> None:
        name = str(self.num_added)
        self.pool.add(make_request(name, priority=level, num_slots=num_slots, queue_s=queue_s), self.now)
        deadline_at = None if queue_s is None else self.now + queue_s
        self.model.waiting.append(Item(name, level, num_slots, self.now, self.num_added, deadline_at))
        self.num_added += 1

    def decide(self) -> None:
        num_free = self.pool.replicas["r0"].num_free
        decision = self.pool.decide(self.now)
        dispatched, evicted, wake_at = self.model.decide(self.now, num_free)
        assert [placement.request_id for placement in decision.dispatch] == dispatched
        assert [eviction.request_id for eviction in decision.evict] == evicted
        assert decision.wake_at == wake_at
        self.left.update(evicted)

    def remove(self, pick: int) -> None:
        waiting = self.model.waiting
        if waiting:
            item = waiting.pop(pick % len(waiting))
            assert self.pool.scheduler.remove(item.id, self.now)
            self.left[item.id] += 1

    def finish(self, pick: int) -> None:
        if item := self._pop_running(pick):
            self.pool.finish(item.id, self.now)
            self.left[item.id] += 1

    def requeue(self, pick: int) -> None:
        if item := self._pop_running(pick):
            self.pool.requeue(item.id, self.now)
            item.passed_since = None
            if item.deadline_at is not None:
                item.deadline_at = self.now + (item.deadline_at - item.dispatched_at)
            self.model.waiting.append(item)

    def _pop_running(self, pick: int) -> Item | None:
        running = self.model.running
        return running.pop(list(running)[pick % len(running)]) if running else None

    def check_totals(self) -> None:
        snapshot = self.pool.scheduler.snapshot(self.now)
        waiting = self.model.waiting
        assert snapshot.num_waiting == len(waiting)
        assert snapshot.num_waiting_slots == sum(item.num_slots for item in waiting)
        oldest = min((item.queued_at for item in waiting), default=self.now)
        assert snapshot.oldest_wait_s == self.now - oldest

    def drain(self) -> None:
        while self.model.waiting:
            self.remove(0)
        while self.model.running:
            self.finish(0)
        assert self.left == Counter(str(index) for index in range(self.num_added))
        assert self.pool.scheduler.snapshot(self.now).num_waiting == 0


PICK = st.integers(0, 50)
ADD = st.tuples(
    st.just("add"),
    st.integers(0, 9),
    st.sampled_from([1, 1, 2, 4]),
    st.sampled_from([None, None, None, None, 0.25, 3.0]),
)
STEP = st.one_of(
    ADD,
    ADD,
    ADD,
    ADD,
    st.tuples(st.just("finish"), PICK),
    st.tuples(st.just("finish"), PICK),
    st.tuples(st.sampled_from(["requeue", "remove"]), PICK),
    st.tuples(st.just("pass"), st.sampled_from([0.25, 0.5, 1.0])),
)


@pytest.mark.parametrize("config", CONFIGS, ids=["fifo", "priority", "ageing"])
@settings(max_examples=60, deadline=None)
@given(num_slots=st.integers(3, 6), steps=st.lists(STEP, min_size=60, max_size=120))
def test_decisions_equal_the_model(
    config: SchedulingConfig, num_slots: int, steps: list[tuple[Any, ...]]
) -> None:
    both = Both(config, num_slots)
    for number, (what, *arguments) in enumerate(steps):
        if what == "pass":
            both.now += arguments[0]
        else:
            getattr(both, what)(*arguments)
        if number % 3:  # sometimes several things happen before anybody asks
            both.decide()
        both.check_totals()
    both.drain()
