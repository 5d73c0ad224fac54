"""What is particular to each preset, and how settings choose one."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime.core.errors import ConfigError
from llm_runtime.scheduling.config import Preset, SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.scheduling.pools import FakePool, FakeReplica, make_request

INTERVAL_S = 2.0
STRICT = SchedulingConfig(policy="priority")
AGEING = replace(STRICT, priority_aging_boost_interval_s=INTERVAL_S)


def started(config: SchedulingConfig, *requests: tuple[str, int, float]) -> list[str]:
    """Queues (id, priority, instant) while the only slot is taken, then lets all run in turn."""
    pool = FakePool(build_scheduler(config), FakeReplica(1))
    pool.add(make_request("first"), -1.0)
    pool.dispatch(-1.0)
    for name, priority, at in requests:
        pool.add(make_request(name, priority=priority), at)
    order = []
    running = "first"
    for _ in requests:
        pool.finish(running, 1000.0)
        (running,) = pool.dispatch(1000.0)
        order.append(running)
    return order


def test_fifo_ignores_priority() -> None:
    assert started(SchedulingConfig(), ("a", 9, 0.0), ("b", 0, 1.0), ("c", 5, 2.0)) == ["a", "b", "c"]


def test_priority_is_strict_without_ageing() -> None:
    assert started(STRICT, ("low", 9, 0.0), ("mid", 5, 500.0), ("high", 0, 999.0)) == ["high", "mid", "low"]


def test_f52_d_priority_is_fifo_within_a_level() -> None:
    assert started(STRICT, ("b1", 3, 0.0), ("a1", 2, 1.0), ("b2", 3, 2.0), ("a2", 2, 3.0)) == [
        "a1",
        "a2",
        "b1",
        "b2",
    ]


def test_f52_b_ageing_lifts_by_one_level_per_interval() -> None:
    overtaking = ("high", 4, INTERVAL_S - 0.1)
    too_late = ("late", 4, INTERVAL_S + 0.1)
    assert started(AGEING, ("low", 5, 0.0), overtaking, too_late) == ["high", "low", "late"]


def test_at_a_tie_the_better_level_goes_first() -> None:
    assert started(AGEING, ("low", 5, 0.0), ("high", 4, INTERVAL_S)) == ["high", "low"]


def test_priorities_out_of_range_count_as_the_nearest_level() -> None:
    """The API refuses them; a scheduler must not fall over one that got through."""
    assert started(STRICT, ("far", 1000, 0.0), ("near", -1000, 1.0), ("mid", 9, 2.0)) == [
        "near",
        "far",
        "mid",
    ]


def test_f52_g_batches_do_not_invert_priorities() -> None:
    """Low requests open the window; whoever is best when it closes goes in."""
    pool = FakePool(build_scheduler(STRICT), FakeReplica(2, static=True))
    pool.add(make_request("first"), 0.0)
    assert pool.dispatch(0.0) == ["first"]
    for name, priority in (("low1", 9), ("low2", 9), ("high", 0)):
        pool.add(make_request(name, priority=priority), 1.0)
    pool.finish("first", 2.0)
    assert pool.dispatch(2.0) == ["high", "low1"]


@settings(max_examples=50, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 8).map(lambda n: n / 8)), max_size=60),
    service_gaps=st.lists(st.integers(1, 3), min_size=1, max_size=5),
)
def test_with_ageing_only_near_arrivals_overtake(
    arrivals: list[tuple[int, float]], service_gaps: list[int]
) -> None:
    """A request is overtaken only by better levels that came within dp intervals after it, whatever
    the interleaving of arrivals and dispatches."""
    pool = FakePool(build_scheduler(AGEING), FakeReplica(1))
    queued: dict[str, tuple[int, float]] = {}
    order: list[str] = []
    now = 0.0

    def serve(at: float) -> None:
        for name in list(pool.running):
            pool.finish(name, at)
        order.extend(pool.dispatch(at))

    for index, (priority, gap_s) in enumerate(arrivals):
        now += gap_s
        queued[str(index)] = (priority, now)
        pool.add(make_request(str(index), priority=priority), now)
        if index % service_gaps[index % len(service_gaps)] == 0:
            serve(now)
    while pool.running or len(order) < len(queued):
        serve(now)
    assert sorted(order, key=int) == [str(index) for index in range(len(arrivals))]
    for position, earlier in enumerate(order):
        for later in order[position + 1 :]:
            (earlier_level, earlier_at), (later_level, later_at) = queued[earlier], queued[later]
            if later_at < earlier_at:
                assert later_level > earlier_level
                assert earlier_at - later_at <= (later_level - earlier_level) * INTERVAL_S


def test_f52_a_with_ageing_a_low_request_runs_under_a_flood_of_high_ones() -> None:
    pool = FakePool(build_scheduler(AGEING), FakeReplica(1))
    pool.add(make_request("running", priority=0), 0.0)
    pool.dispatch(0.0)
    pool.add(make_request("low", priority=9), 0.0)
    running, now = "running", 0.0
    while running != "low":
        now += 0.1
        assert now <= 9 * INTERVAL_S * 1.1, "starved"
        pool.add(make_request(f"high{now}", priority=0), now)
        pool.finish(running, now)
        (running,) = pool.dispatch(now)
    assert now >= 9 * INTERVAL_S


def test_an_unknown_policy_is_refused_by_name() -> None:
    config = SchedulingConfig(policy=cast("Preset", "sjf"))
    with pytest.raises(ConfigError, match=r"'sjf'.*fifo, priority"):
        build_scheduler(config)


def test_without_batching_every_idle_engine_gets_one_request() -> None:
    config = SchedulingConfig(enable_batching=False)
    pool = FakePool(build_scheduler(config), FakeReplica(8, static=True), FakeReplica(4, static=True))
    for name in ("a", "b", "c"):
        pool.add(make_request(name), 1.0)
    decision = pool.decide(1.0)
    assert [placement.request_id for placement in decision.dispatch] == ["a"]
    assert decision.wake_at == 1.0
    assert pool.dispatch(1.0) == ["b"]
    assert pool.dispatch(1.0) == []
    assert {len(replica.running) for replica in pool.replicas.values()} == {1}


def test_our_limit_bounds_the_batch_of_a_larger_engine() -> None:
    config = SchedulingConfig(max_batch_size=3, batch_timeout_ms=0.0)
    pool = FakePool(build_scheduler(config), FakeReplica(8, static=True))
    for index in range(5):
        pool.scheduler.add(make_request(str(index)), 1.0)
        pool.requests[str(index)] = make_request(str(index))
    assert pool.dispatch(1.0) == ["0", "1", "2"]
