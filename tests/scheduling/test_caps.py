"""Class caps: what a class may hold, and when it may hold it anyway."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import PriorityClass, RuntimeRequest, priority_class
from llm_runtime.scheduling.base import FirstToken, PoolSize, RequestFinished
from llm_runtime.scheduling.caps import ClassCap, ClassCaps
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.scheduling.pools import FakePool, FakeReplica, make_request

LIVE, BATCH = 2, 8
NOBODY = dict.fromkeys(PriorityClass, 0)


def asked(name: str, priority: int = BATCH, *, num_slots: int = 1, stream: bool = True) -> RuntimeRequest:
    return replace(make_request(name, priority=priority, num_slots=num_slots), stream=stream)


def waiting_live() -> dict[PriorityClass, int]:
    return {**NOBODY, PriorityClass.INTERACTIVE: 1}


def caps_of(**cap: float) -> ClassCaps:
    return ClassCaps({PriorityClass.BATCH: ClassCap(**cap)})  # type: ignore[arg-type]


# ---- slots


@pytest.mark.parametrize(
    ("share", "num_slots", "limit"), [(0.5, 8, 4), (0.99, 8, 7), (1.0, 8, 8), (0.3, 10, 3)]
)
def test_a_class_holds_its_share_of_the_slots_in_force(share: float, num_slots: int, limit: int) -> None:
    caps, size = caps_of(slot_share=share), PoolSize(num_slots, 1)
    for number in range(limit):
        assert caps.allows(asked(f"{number}"), size, waiting_live(), 0.0)
        caps.started(asked(f"{number}"), 0.0, 0.0)
    assert not caps.allows(asked("more"), size, NOBODY, 0.0)
    assert caps.allows(asked("more"), PoolSize(2 * num_slots, 1), NOBODY, 0.0) is (
        int(share * 2 * num_slots) > limit
    )
    caps.left(asked("0"))
    assert caps.allows(asked("more"), size, NOBODY, 0.0)


def test_other_classes_are_not_capped() -> None:
    caps = caps_of(slot_share=0.1)
    assert all(caps.allows(asked("x", priority), PoolSize(1, 1), NOBODY, 0.0) for priority in range(7))


def test_a_share_of_less_than_a_slot_is_one_while_better_classes_are_idle() -> None:
    caps, size = caps_of(slot_share=0.1), PoolSize(4, 1)
    assert caps.allows(asked("a"), size, NOBODY, 0.0)
    assert not caps.allows(asked("a"), size, waiting_live(), 0.0)
    caps.started(asked("live", LIVE), 0.0, 0.0)
    assert not caps.allows(asked("a"), size, NOBODY, 0.0)
    caps.left(asked("live", LIVE))
    caps.started(asked("a"), 0.0, 0.0)
    assert not caps.allows(asked("b"), size, NOBODY, 0.0)


def test_one_that_is_wider_than_the_share_runs_alone() -> None:
    caps, size = caps_of(slot_share=0.5), PoolSize(4, 1)
    assert caps.allows(asked("wide", num_slots=3), size, waiting_live(), 0.0)
    caps.started(asked("a"), 0.0, 0.0)
    assert not caps.allows(asked("wide", num_slots=3), size, NOBODY, 0.0)


# ---- prompts


def test_prompts_come_one_by_one_on_each_replica() -> None:
    caps, size = caps_of(prompts=1), PoolSize(16, 2)
    for name in ("a", "b"):
        assert caps.allows(asked(name), size, waiting_live(), 0.0)
        caps.started(asked(name), 0.0, 1.0)
    assert not caps.allows(asked("c"), size, NOBODY, 5.0)
    caps.first_token(asked("a"), 5.0)
    assert caps.allows(asked("c"), size, NOBODY, 5.0)


def test_an_end_without_a_token_ends_the_prompt() -> None:
    caps, size = caps_of(prompts=1), PoolSize(8, 1)
    caps.started(asked("a"), 0.0, 1.0)
    caps.left(asked("a"))
    assert caps.allows(asked("b"), size, NOBODY, 0.0)
    caps.first_token(asked("a"), 1.0)  # late news of one that has gone


def test_of_a_plain_reply_the_prediction_tells_when_its_prompt_is_done() -> None:
    caps, size = caps_of(prompts=1), PoolSize(8, 1)
    caps.started(asked("a", stream=False), 10.0, 2.0)
    assert not caps.allows(asked("b"), size, NOBODY, 11.0)
    assert caps.wake_at(size, 11.0) == 12.0
    assert caps.allows(asked("b"), size, NOBODY, 12.0)
    assert caps.wake_at(size, 12.0) is None


def test_a_pause_follows_each_prompt_while_others_are_active() -> None:
    caps, size = caps_of(prompt_time_share=0.25), PoolSize(8, 1)
    caps.started(asked("a"), 0.0, 1.0)
    caps.first_token(asked("a"), 2.0)
    assert not caps.allows(asked("b"), size, waiting_live(), 7.9)
    assert caps.wake_at(size, 3.0) == 8.0
    assert caps.allows(asked("b"), size, waiting_live(), 8.0)
    assert caps.allows(asked("b"), size, NOBODY, 3.0)
    assert caps.allows(asked("b"), PoolSize(8, 3), waiting_live(), 4.0)


# ---- in the scheduler


def run_with(**config: float) -> FakePool:
    scheduler = build_scheduler(SchedulingConfig(policy="priority", **config))  # type: ignore[arg-type]
    return FakePool(scheduler, FakeReplica(4))


def test_f52_c_live_requests_find_a_slot_beside_a_crowd() -> None:
    pool = run_with(batch_slot_share=0.75)
    for number in range(10):
        pool.add(asked(f"b{number}"), 0.0)
    assert pool.dispatch(0.0) == ["b0", "b1", "b2"]
    assert pool.decide(1.0).wake_at is None
    pool.add(asked("live", LIVE), 1.0)
    assert pool.dispatch(1.0) == ["live"]
    pool.finish("live", 2.0)
    assert pool.dispatch(2.0) == []
    pool.finish("b1", 3.0)
    assert pool.dispatch(3.0) == ["b3"]


def test_a_first_token_lets_the_next_prompt_start() -> None:
    pool = run_with(batch_prompts=1)
    for number in range(3):
        pool.add(asked(f"b{number}"), 0.0)
    assert pool.dispatch(0.0) == ["b0"]
    assert pool.dispatch(1.0) == []
    pool.scheduler.observe(FirstToken("b0"), 2.0)
    assert pool.dispatch(2.0) == ["b1"]
    pool.scheduler.observe(FirstToken("nobody"), 2.0)
    assert pool.dispatch(2.0) == []
    pool.finish("b1", 2.5)
    assert pool.dispatch(2.5) == ["b2"]


def test_the_scheduler_wakes_when_a_pause_ends() -> None:
    pool = run_with(batch_prompt_time_share=0.5)
    pool.add(asked("live", LIVE), 0.0)
    pool.add(asked("b0"), 0.0)
    pool.add(asked("b1"), 0.0)
    assert pool.dispatch(0.0) == ["live", "b0", "b1"]
    pool.scheduler.observe(FirstToken("b1"), 4.0)
    pool.add(asked("b2"), 4.0)
    decision = pool.decide(4.0)
    assert (decision.dispatch, decision.wake_at) == ((), 8.0)
    assert pool.dispatch(8.0) == ["b2"]


def test_a_preempted_request_gives_its_share_back() -> None:
    pool = run_with(batch_slot_share=0.25)
    pool.add(asked("a"), 0.0)
    pool.add(asked("b"), 0.0)
    assert pool.dispatch(0.0) == ["a"]
    pool.requeue("a", 1.0)
    assert pool.dispatch(1.0) == ["a"]
    pool.scheduler.observe(RequestFinished("a", Usage(1, 1)), 2.0)
    del pool.replicas["r0"].running["a"]
    assert pool.dispatch(2.0) == ["b"]


@given(
    st.lists(st.tuples(st.sampled_from(["live", "batch", "end", "token"]), st.integers(1, 3)), max_size=80),
    st.sampled_from([0.1, 0.5, 0.75]),
)
def test_caps_hold_and_nothing_starves_when_all_is_idle(steps: list[tuple[str, int]], share: float) -> None:
    pool = FakePool(
        build_scheduler(SchedulingConfig(policy="priority", batch_slot_share=share)), FakeReplica(8)
    )
    for number, (what, size) in enumerate(steps):
        now = float(number)
        if what in ("live", "batch"):
            pool.add(asked(str(number), LIVE if what == "live" else BATCH, num_slots=size), now)
        elif what == "end" and pool.running:
            pool.finish(next(iter(pool.running)), now)
        pool.decide(now)
        held = [r for r, _ in pool.running.values() if priority_class(r.priority) is PriorityClass.BATCH]
        taken = sum(request.num_slots for request in held)
        assert taken <= int(share * 8) or len(held) == 1
    while pool.running:
        pool.finish(next(iter(pool.running)), 1000.0)
        pool.decide(1000.0)
    assert pool.scheduler.snapshot(1000.0).num_waiting == 0
