"""The scheduler against a naive model: same decisions, and every request leaves exactly once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.scheduling.pools import FakePool, FakeReplica, make_request

MAX_SKIP_S = 1.0
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


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(config=st.sampled_from(CONFIGS), num_slots=st.integers(1, 6))
    def build(self, config: SchedulingConfig, num_slots: int) -> None:
        self.now = 0.0
        self.pool = FakePool(build_scheduler(config), FakeReplica(num_slots))
        self.model = Model(config)
        self.num_added = 0
        self.left: Counter[str] = Counter()

    @rule(seconds=st.sampled_from([0.0, 0.25, 0.5, 1.5]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        level=st.integers(0, 9),
        num_slots=st.sampled_from([1, 1, 1, 2, 4]),
        queue_s=st.sampled_from([None, None, 0.25, 1.0, 3.0]),
    )
    def add(self, level: int, num_slots: int, queue_s: float | None) -> None:
        name = str(self.num_added)
        self.pool.add(make_request(name, priority=level, num_slots=num_slots, queue_s=queue_s), self.now)
        deadline_at = None if queue_s is None else self.now + queue_s
        self.model.waiting.append(Item(name, level, num_slots, self.now, self.num_added, deadline_at))
        self.num_added += 1

    @rule()
    def decide(self) -> None:
        num_free = self.pool.replicas["r0"].num_free
        decision = self.pool.decide(self.now)
        dispatched, evicted, wake_at = self.model.decide(self.now, num_free)
        assert [placement.request_id for placement in decision.dispatch] == dispatched
        assert [eviction.request_id for eviction in decision.evict] == evicted
        assert decision.wake_at == wake_at
        self.left.update(evicted)

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.model.waiting))
        assert self.pool.scheduler.remove(item.id, self.now)
        self.model.waiting.remove(item)
        self.left[item.id] += 1

    @precondition(lambda self: self.model.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.running)))
        self.pool.finish(name, self.now)
        del self.model.running[name]
        self.left[name] += 1

    @precondition(lambda self: self.model.running)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.running)))
        self.pool.requeue(name, self.now)
        item = self.model.running.pop(name)
        item.passed_since = None
        if item.deadline_at is not None:
            item.deadline_at = self.now + (item.deadline_at - item.dispatched_at)
        self.model.waiting.append(item)

    @invariant()
    def totals_agree(self) -> None:
        snapshot = self.pool.scheduler.snapshot(self.now)
        waiting = self.model.waiting
        assert snapshot.num_waiting == len(waiting)
        assert snapshot.num_waiting_slots == sum(item.num_slots for item in waiting)
        oldest = min((item.queued_at for item in waiting), default=self.now)
        assert snapshot.oldest_wait_s == self.now - oldest

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        for item in self.model.waiting:
            assert self.pool.scheduler.remove(item.id, self.now)
            self.left[item.id] += 1
        self.left.update(self.model.running)
        assert self.left == Counter(str(index) for index in range(self.num_added))


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
