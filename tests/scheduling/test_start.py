"""`start` is `add`, `decide` and `Dispatched` in one: two schedulers in lockstep, one of which does it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.outcome import Usage
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.scheduling.pools import FakeCapacity, FakePool, FakeReplica, make_request
from tests.scheduling.test_conformance import CONFIGS

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("come", "come", "end", "leave", "requeue")),
        st.integers(0, 9),  # priority, or which of those that run or wait
        st.integers(1, 3),  # slots
        st.sampled_from((None, 0.0, 2.5)),  # how long it may wait
        st.sampled_from((0.0, 0.1, 1.0)),  # until the next step
    ),
    max_size=60,
)


def started(pool: FakePool, name: str, now: float, **members: object) -> bool:
    request = make_request(name, **members)  # type: ignore[arg-type]
    placement = pool.scheduler.start(request, now, FakeCapacity(pool.replicas))
    if placement is None:
        return False
    assert placement.request_id == name
    pool.requests[name] = request
    pool.queued_at[name] = now
    pool.replicas[placement.replica].running[name] = request
    pool.running[name] = (request, placement.replica)
    return True


@pytest.mark.parametrize("preset", CONFIGS)
@given(steps=STEPS, static=st.booleans())
def test_both_ways_decide_the_same(preset: str, steps: list[tuple], static: bool) -> None:  # type: ignore[type-arg]
    replicas = [(2, static), (3, False)]
    short, long = (
        FakePool(
            build_scheduler(CONFIGS[preset]),
            *(FakeReplica(num, static=is_static) for num, is_static in replicas),
        )
        for _ in range(2)
    )
    now = 0.0
    for number, (what, pick, num_slots, queue_s, pause_s) in enumerate(steps):
        name = f"q{number}"
        members = {"priority": pick, "num_slots": num_slots, "queue_s": queue_s, "tenant": f"t{pick % 2}"}
        if what == "come":
            if not started(short, name, now, **members):
                short.add(make_request(name, **members), now)
            long.add(make_request(name, **members), now)
        elif what == "leave":
            assert short.scheduler.remove(f"q{pick}", now) == long.scheduler.remove(f"q{pick}", now)
        elif short.running:
            chosen = sorted(short.running)[pick % len(short.running)]
            for pool in (short, long):
                if what == "end":
                    pool.end(chosen, Usage(7, 3), now)
                else:
                    pool.requeue(chosen, now)
        one, other = short.decide(now), long.decide(now)
        assert {**short.running} == {**long.running}
        assert (one.evict, one.preempt, one.shed) == (other.evict, other.preempt, other.shed)
        assert short.scheduler.snapshot(now) == long.scheduler.snapshot(now)
        probe = make_request("probe", priority=pick)
        assert short.scheduler.outlook(probe, now) == long.scheduler.outlook(probe, now)
        now += pause_s


def test_a_request_that_finds_room_is_started() -> None:
    pool = FakePool(build_scheduler(SchedulingConfig(policy="fifo")), FakeReplica(1))
    assert started(pool, "a", 1.0)
    assert pool.scheduler.snapshot(1.0).num_waiting == 0


@pytest.mark.parametrize("case", ["no room", "somebody waits", "static", "fair", "no time"])
def test_else_it_is_left_to_a_decision(case: str) -> None:
    config = CONFIGS["fair" if case == "fair" else "fifo"]
    pool = FakePool(build_scheduler(config), FakeReplica(2, static=case == "static"))
    if case == "somebody waits":
        pool.add(make_request("before", num_slots=1), 0.0)
    assert not started(
        pool, "a", 1.0, num_slots=3 if case == "no room" else 1, queue_s=0.0 if case == "no time" else None
    )
    assert "a" not in pool.running
    pool.add(make_request("a"), 1.0)
    assert pool.scheduler.snapshot(1.0).num_waiting == (2 if case == "somebody waits" else 1)
