"""What every policy has to do, whatever its order: run on each preset."""

from __future__ import annotations

import time

import pytest

from llm_runtime.scheduling.base import Eviction, RequestFinished, Requeued, Scheduler
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import PRESETS, build_scheduler
from tests.scheduling.pools import FakePool, FakeReplica, make_request

CONFIGS = {
    "fifo": SchedulingConfig(policy="fifo"),
    "priority": SchedulingConfig(policy="priority"),
    "priority-ageing": SchedulingConfig(policy="priority", priority_aging_boost_interval_s=2.0),
    "priority-caps": SchedulingConfig(policy="priority", batch_slot_share=0.5, batch_prompts=1),
    "fair": SchedulingConfig(policy="fair"),
    "fair-ageing": SchedulingConfig(policy="fair", priority_aging_boost_interval_s=2.0),
    "deadline": SchedulingConfig(policy="deadline"),
    "shortest": SchedulingConfig(policy="shortest"),
}


def test_every_preset_is_covered() -> None:
    assert {config.policy for config in CONFIGS.values()} == set(PRESETS)


@pytest.fixture(params=CONFIGS)
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    return build_scheduler(CONFIGS[request.param])


def ids(prefix: str, num: int) -> list[str]:
    return [f"{prefix}{index}" for index in range(num)]


def test_an_empty_queue_decides_nothing(scheduler: Scheduler) -> None:
    decision = FakePool(scheduler, FakeReplica(4)).decide(1.0)
    assert (decision.dispatch, decision.evict, decision.preempt, decision.wake_at) == ((), (), (), None)


def test_a_free_slot_is_used_at_once(scheduler: Scheduler) -> None:
    pool = FakePool(scheduler, FakeReplica(1))
    pool.add(make_request("a"), 0.0)
    assert pool.dispatch(0.0) == ["a"]


def test_equal_requests_run_in_the_order_they_came(scheduler: Scheduler) -> None:
    pool = FakePool(scheduler, FakeReplica(1))
    names = ids("", 1000)
    for name in names:
        pool.add(make_request(name), 3.0)
    started = []
    for name in names:
        started += pool.dispatch(4.0)
        pool.finish(name, 4.0)
    assert started == names


def test_nothing_is_placed_beyond_the_free_slots(scheduler: Scheduler) -> None:
    pool = FakePool(scheduler, FakeReplica(2), FakeReplica(1))
    for name in ids("", 5):
        pool.add(make_request(name), 0.0)
    assert len(pool.dispatch(0.0)) == 3
    assert pool.dispatch(0.0) == []
    assert scheduler.snapshot(0.0).num_waiting == 2


def test_a_queued_id_cannot_be_queued_again(scheduler: Scheduler) -> None:
    scheduler.add(make_request("a"), 0.0)
    with pytest.raises(ValueError, match="already queued"):
        scheduler.add(make_request("a"), 1.0)
    assert scheduler.snapshot(1.0).num_waiting == 1


def test_removed_requests_never_run(scheduler: Scheduler) -> None:
    """Clients that left while queued cost nothing, also in the totals that admission looks at."""
    pool = FakePool(scheduler, FakeReplica(1))
    pool.add(make_request("running"), 0.0)
    pool.dispatch(0.0)
    for name in ids("gone", 10):
        pool.add(make_request(name, queue_s=3.0), 1.0)
    pool.add(make_request("c"), 2.0)
    assert all(scheduler.remove(name, 2.0) for name in ids("gone", 10))
    assert not scheduler.remove("gone0", 2.0)
    snapshot = scheduler.snapshot(2.0)
    assert (snapshot.num_waiting, snapshot.num_waiting_slots) == (1, 1)
    pool.finish("running", 5.0)
    decision = pool.decide(5.0)
    assert [placement.request_id for placement in decision.dispatch] == ["c"]
    assert decision.evict == ()


def test_a_dispatched_request_cannot_be_removed(scheduler: Scheduler) -> None:
    pool = FakePool(scheduler, FakeReplica(1))
    pool.add(make_request("a"), 0.0)
    pool.dispatch(0.0)
    assert not scheduler.remove("a", 0.0)


def test_queue_time_limit_evicts_before_placing(scheduler: Scheduler) -> None:
    pool = FakePool(scheduler, FakeReplica(1))
    pool.add(make_request("running"), 0.0)
    assert pool.dispatch(0.0) == ["running"]
    pool.add(make_request("late", queue_s=2.0), 1.0)
    pool.add(make_request("patient"), 1.0)
    pool.add(make_request("soon", queue_s=1.0), 1.0)
    assert pool.decide(1.5).wake_at == 2.0
    decision = pool.decide(2.0)
    assert decision.evict == (Eviction("soon", "queue_timeout"),)
    assert decision.wake_at == 3.0
    pool.finish("running", 3.0)
    decision = pool.decide(3.0)
    assert decision.evict == (Eviction("late", "queue_timeout"),)
    assert [placement.request_id for placement in decision.dispatch] == ["patient"]


def test_a_requeued_request_gets_its_old_place(scheduler: Scheduler) -> None:
    pool = FakePool(scheduler, FakeReplica(2))
    for name in ("a", "b", "c", "d"):
        pool.add(make_request(name), 7.0)
    assert pool.dispatch(7.0) == ["a", "b"]
    pool.requeue("b", 8.0)
    pool.requeue("a", 8.0)
    assert pool.dispatch(8.0) == ["a", "b"]


def test_requeued_after_its_end_was_told_it_still_goes_before_its_contemporaries(
    scheduler: Scheduler,
) -> None:
    pool = FakePool(scheduler, FakeReplica(1))
    for name in ("a", "b"):
        pool.add(make_request(name), 7.0)
    assert pool.dispatch(7.0) == ["a"]
    pool.finish("a", 8.0)
    scheduler.observe(Requeued(pool.requests["a"], 7.0), 8.0)
    scheduler.observe(Requeued(pool.requests["a"], 7.0), 8.0)
    assert scheduler.snapshot(8.0).num_waiting == 2
    assert pool.dispatch(8.0) == ["a"]


def test_time_on_an_engine_does_not_count_as_waiting(scheduler: Scheduler) -> None:
    pool = FakePool(scheduler, FakeReplica(1))
    pool.add(make_request("a", queue_s=2.0), 0.0)
    assert pool.decide(0.0).wake_at is None
    pool.replicas["r0"].up = False
    pool.requeue("a", 60.0)
    decision = pool.decide(61.5)
    assert (decision.evict, decision.wake_at) == ((), 62.0)
    assert pool.decide(62.0).evict == (Eviction("a", "queue_timeout"),)


def test_ends_of_unknown_requests_are_ignored(scheduler: Scheduler) -> None:
    pool = FakePool(scheduler, FakeReplica(1))
    pool.add(make_request("a"), 0.0)
    scheduler.observe(RequestFinished("nobody", None), 0.0)
    scheduler.observe(RequestFinished("a", None), 0.0)
    assert pool.dispatch(0.0) == ["a"]


def test_a_smaller_request_may_pass_one_that_does_not_fit_for_a_while(scheduler: Scheduler) -> None:
    """max_skip_s is 1: counted from the first time somebody passed, not from when it came."""
    pool = FakePool(scheduler, FakeReplica(4))
    for name in ids("running", 3):
        pool.add(make_request(name), 0.0)
    assert len(pool.dispatch(0.0)) == 3
    pool.add(make_request("wide", num_slots=4), 1.0)
    assert pool.dispatch(50.0) == []
    pool.add(make_request("s0"), 50.0)
    assert pool.dispatch(50.0) == ["s0"]
    pool.finish("s0", 50.5)
    pool.add(make_request("s1"), 50.5)
    assert pool.dispatch(50.5) == ["s1"]
    pool.finish("s1", 51.0)
    pool.add(make_request("s2"), 51.0)
    assert pool.dispatch(51.0) == [], "the limit has been reached: slots gather for the wide one"
    for name in ids("running", 3):
        assert pool.dispatch(52.0) == []
        pool.finish(name, 52.0)
    assert pool.dispatch(52.0) == ["wide"]


def test_a_request_that_fits_nowhere_does_not_stop_the_pool(scheduler: Scheduler) -> None:
    """The large replica is down: waiting for slots of the small one would be in vain."""
    pool = FakePool(scheduler, FakeReplica(8, up=False), FakeReplica(2))
    pool.add(make_request("wide", num_slots=8), 0.0)
    started: list[str] = []
    for index in range(10):
        pool.add(make_request(f"s{index}"), float(index))
        dispatched = pool.dispatch(float(index))
        started += dispatched
        for name in dispatched:
            pool.finish(name, float(index) + 0.5)
    assert started == ids("s", 10)
    pool.replicas["r0"].up = True
    assert pool.dispatch(20.0) == ["wide"]


def test_one_question_per_size_however_many_wait(scheduler: Scheduler) -> None:
    pool = FakePool(scheduler, FakeReplica(8))
    pool.add(make_request("running", num_slots=7), 0.0)
    assert pool.dispatch(0.0) == ["running"]
    for index in range(300):
        pool.add(make_request(f"w{index}", num_slots=2 + index % 3), 1.0)
    assert pool.dispatch(1.0) == []
    assert len(pool.asked) == 3


def test_the_totals_admission_reads(scheduler: Scheduler) -> None:
    scheduler.add(make_request("a", priority=0, num_slots=2, max_tokens=5), 10.0)
    scheduler.add(make_request("b", priority=5, max_tokens=7), 11.0)
    scheduler.add(make_request("c", priority=9, max_tokens=7), 12.0)
    snapshot = scheduler.snapshot(13.0)
    assert snapshot.num_waiting == 3
    assert snapshot.num_waiting_slots == 4
    assert snapshot.num_waiting_tokens == (10 + 2 * 5) + (10 + 7) + (10 + 7)
    assert snapshot.oldest_wait_s == 3.0
    assert snapshot.waiting_by_class == {"interactive": 1, "standard": 1, "batch": 1}
    scheduler.remove("a", 13.0)
    assert scheduler.snapshot(13.0).oldest_wait_s == 2.0
    assert scheduler.snapshot(13.0).waiting_by_class == {"interactive": 0, "standard": 1, "batch": 1}


def test_ten_thousand_waiting_do_not_slow_down_leaving(scheduler: Scheduler) -> None:
    """A scan per removal would take tens of millions of steps, a heap takes a fraction of a second."""
    num = 10_000
    pool = FakePool(scheduler, FakeReplica(1))
    for index in range(num):
        pool.add(make_request(str(index), priority=index % 10, queue_s=1e6 + index), float(index))
    began_at = time.perf_counter()
    for index in range(0, num, 2):
        assert scheduler.remove(str(index), float(num))
    for _ in range(1000):
        (name,) = pool.dispatch(float(num))
        pool.finish(name, float(num))
    assert time.perf_counter() - began_at < 1.0
    assert scheduler.snapshot(float(num)).num_waiting == num // 2 - 1000


def test_what_a_request_would_meet_is_told_without_changing_anything(scheduler: Scheduler) -> None:
    for name in ids("", 4):
        scheduler.add(make_request(name), 0.0)
    before = scheduler.snapshot(1.0)
    outlook = scheduler.outlook(make_request("new"), 1.0)
    assert outlook.work >= 1
    assert outlook.ahead == pytest.approx(4 * outlook.work)
    assert scheduler.snapshot(1.0) == before


def test_work_is_counted_exactly_whatever_leaves(scheduler: Scheduler) -> None:
    pool = FakePool(scheduler, FakeReplica(2))
    for name in ids("", 6):
        pool.add(make_request(name), 0.0)
    pool.dispatch(0.0)
    scheduler.remove("5", 0.0)
    outlook = scheduler.outlook(make_request("new"), 1.0)
    assert outlook.ahead == pytest.approx(3 * outlook.work)
    for name in ("2", "3", "4"):
        scheduler.remove(name, 1.0)
    assert scheduler.outlook(make_request("new"), 1.0).ahead == 0
    assert set(scheduler.snapshot(1.0).work_by_class.values()) == {0.0}


def test_shed_are_the_sheddable_alone_the_lowest_first_and_of_those_the_latest(scheduler: Scheduler) -> None:
    for number, (name, priority) in enumerate([("a", 5), ("b", 9), ("c", 7), ("d", 9), ("e", 2), ("f", 7)]):
        scheduler.add(make_request(name, priority=priority), float(number))
    assert scheduler.make_room(3, 0.0, 6.0) == tuple(Eviction(name, "shed") for name in ("d", "b", "f"))
    assert scheduler.make_room(5, 0.0, 6.0) == (Eviction("c", "shed"),)
    assert scheduler.make_room(1, 0.0, 6.0) == ()
    assert scheduler.snapshot(6.0).num_waiting == 2


def test_as_much_is_shed_as_brings_the_work_wanted(scheduler: Scheduler) -> None:
    for name in ids("", 5):
        scheduler.add(make_request(name, priority=8), 0.0)
    work = scheduler.outlook(make_request("x", priority=8), 0.0).work
    assert len(scheduler.make_room(0, 2.5 * work, 0.0)) == 3
