"""Preemption: who gives way to whom, and how often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_runtime.core.request import RuntimeRequest
from llm_runtime.scheduling.base import Decision, FirstToken
from llm_runtime.scheduling.config import Preemptible, SchedulingConfig
from llm_runtime.scheduling.preemption import MAX_PREEMPTIONS
from llm_runtime.scheduling.presets import build_scheduler
from tests.scheduling.pools import FakePool, FakeReplica, make_request

LIVE, MIDDLE, BATCH = 2, 5, 8


def asked(name: str, priority: int, *, num_slots: int = 1, stream: bool = True) -> RuntimeRequest:
    return replace(make_request(name, priority=priority, num_slots=num_slots), stream=stream)


def pool_of(mode: Preemptible, *replicas: FakeReplica, **config: float) -> FakePool:
    scheduling = SchedulingConfig(policy="priority", preempt=mode, **config)  # type: ignore[arg-type]
    return FakePool(build_scheduler(scheduling), *(replicas or (FakeReplica(2),)))


def running(pool: FakePool, *names: str, priority: int = BATCH, tokens: bool = False) -> None:
    """Started one after the other, a second apart from 0 on."""
    for number, name in enumerate(names):
        pool.add(asked(name, priority), float(number))
        assert pool.dispatch(float(number)) == [name]
        if tokens:
            pool.scheduler.observe(FirstToken(name), float(number))


def came(pool: FakePool, name: str, priority: int = LIVE, *, num_slots: int = 1) -> Decision:
    pool.add(asked(name, priority, num_slots=num_slots), 10.0)
    return pool.decide(10.0)


@pytest.mark.parametrize(
    ("mode", "tokens", "back", "shed"),
    [
        ("never", False, (), ()),
        ("never", True, (), ()),
        ("prompts", False, ("b",), ()),
        ("prompts", True, (), ()),
        ("batch", False, ("b",), ()),
        ("batch", True, (), ("b",)),
    ],
)
def test_who_was_started_last_gives_way_if_the_mode_says_so(
    mode: Preemptible, tokens: bool, back: tuple[str, ...], shed: tuple[str, ...]
) -> None:
    pool = pool_of(mode)
    running(pool, "a", "b", tokens=tokens)
    decision = came(pool, "live")
    assert (decision.preempt, decision.shed, decision.dispatch) == (back, shed, ())


def test_those_at_their_prompt_go_before_those_at_work() -> None:
    pool = pool_of("batch")
    running(pool, "prompt")
    running(pool, "tokens", tokens=True)
    decision = came(pool, "live")
    assert (decision.preempt, decision.shed) == (("prompt",), ())


def test_only_the_batch_class_is_taken_off_its_work() -> None:
    pool = pool_of("batch")
    running(pool, "a", "b", priority=MIDDLE, tokens=True)
    assert came(pool, "live").shed == ()
    pool = pool_of("batch")
    running(pool, "a", "b", priority=MIDDLE)
    assert came(pool, "live").preempt == ("b",)


def test_nobody_gives_way_to_the_same_class_or_a_worse_one() -> None:
    pool = pool_of("batch")
    running(pool, "a", "b", priority=3)
    assert came(pool, "same", 0).preempt == ()
    assert came(pool, "worse", MIDDLE).preempt == ()


def test_nobody_is_asked_while_a_slot_is_free() -> None:
    pool = pool_of("batch")
    running(pool, "a")
    decision = came(pool, "live")
    assert [placement.request_id for placement in decision.dispatch] == ["live"]
    assert decision.preempt == ()


def test_a_request_asks_once_and_each_asks_for_its_own() -> None:
    pool = pool_of("prompts")
    running(pool, "a", "b")
    assert came(pool, "one").preempt == ("b",)
    assert pool.decide(11.0).preempt == ()
    assert came(pool, "two").preempt == ("a",)
    assert came(pool, "three").preempt == ()


def test_the_slot_goes_to_who_asked_and_the_other_keeps_its_place() -> None:
    pool = pool_of("prompts")
    running(pool, "a", "b")
    pool.add(asked("later", BATCH), 5.0)
    assert came(pool, "live").preempt == ("b",)
    pool.requeue("b", 11.0)
    assert pool.dispatch(11.0) == ["live"]
    pool.finish("live", 12.0)
    assert pool.dispatch(12.0) == ["b"]


def test_wide_requests_take_enough_slots_on_one_replica_or_none() -> None:
    pool = pool_of("prompts", FakeReplica(2), FakeReplica(2))
    running(pool, "a", "b", "c", "d")
    decision = came(pool, "wide", num_slots=2)
    assert {pool.running[name][1] for name in decision.preempt} == {"r1"}
    assert len(decision.preempt) == 2
    pool = pool_of("prompts", FakeReplica(1), FakeReplica(1))
    running(pool, "a", "b")
    assert came(pool, "wide", num_slots=2).preempt == ()


def test_with_ageing_nobody_gives_way_to_who_would_be_served_later() -> None:
    """It would go straight back to the engine."""
    pool = pool_of("prompts", FakeReplica(1), priority_aging_boost_interval_s=1.0)
    running(pool, "old")
    assert came(pool, "live").preempt == ()
    pool = pool_of("prompts", FakeReplica(1), priority_aging_boost_interval_s=100.0)
    running(pool, "old")
    assert came(pool, "live").preempt == ("old",)


def test_who_was_preempted_often_enough_stays() -> None:
    pool = pool_of("prompts", FakeReplica(1))
    pool.add(asked("low", BATCH), 0.0)
    for number in range(MAX_PREEMPTIONS):
        assert pool.dispatch(10.0) == ["low"]
        assert came(pool, f"live{number}").preempt == ("low",)
        pool.requeue("low", 10.0)
        assert pool.dispatch(10.0) == [f"live{number}"]
        pool.finish(f"live{number}", 10.0)
    assert pool.dispatch(10.0) == ["low"]
    assert came(pool, "one more").preempt == ()


def test_a_plain_reply_is_at_work_when_its_prompt_should_be_done() -> None:
    """Nothing is known of the engine's speed, so it should be done at once."""
    pool = pool_of("prompts", FakeReplica(1))
    pool.add(asked("plain", BATCH, stream=False), 0.0)
    assert pool.dispatch(0.0) == ["plain"]
    assert came(pool, "live").preempt == ()


def test_a_batch_that_runs_to_its_end_is_not_touched() -> None:
    pool = pool_of("batch", FakeReplica(2, static=True))
    pool.add(asked("a", BATCH), 0.0)
    assert pool.dispatch(0.0) == ["a"]
    decision = came(pool, "live")
    assert (decision.preempt, decision.shed) == ((), ())


def test_fifo_knows_no_better_class() -> None:
    pool = FakePool(build_scheduler(SchedulingConfig(policy="fifo", preempt="batch")), FakeReplica(1))
    running(pool, "a")
    assert came(pool, "live").preempt == ()
