"""Slots kept free for tenants below their share."""

from __future__ import annotations

from dataclasses import replace

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.scheduling.base import FirstToken, PoolSize
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from llm_runtime.scheduling.reserve import MEMORY, Reserve
from tests.scheduling.pools import FakePool, FakeReplica, make_request

COST = 10.0 + 2 * 4


def asked(name: str, tenant: str) -> RuntimeRequest:
    return replace(make_request(name), tenant=tenant)


def pool_of(num_slots: int, *, reserve: int = 1, credit: float = 2 * COST) -> FakePool:
    config = SchedulingConfig(policy="fair", fair_reserve_slots=reserve, fair_credit_tokens=credit)
    return FakePool(build_scheduler(config), FakeReplica(num_slots))


def awake(pool: FakePool) -> None:
    """A small tenant has come beside another one, so that there is somebody to keep slots for."""
    for name in ("other", "somebody"):
        pool.add(asked(name, name), 0.0)
        assert pool.dispatch(0.0) == [name]
    pool.finish("other", 0.0)
    pool.finish("somebody", 0.0)


def flood(pool: FakePool, num: int, at: float = 0.0) -> list[str]:
    for number in range(num):
        pool.add(asked(f"flood{number}", "flood"), at)
    return pool.dispatch(at)


def test_who_has_used_up_its_credit_leaves_a_slot_free() -> None:
    pool = pool_of(4)
    awake(pool)
    assert len(flood(pool, 6)) == 3
    pool.add(asked("small", "small"), 1.0)
    assert pool.dispatch(1.0) == ["small"]


def test_without_a_reserve_every_slot_is_busy() -> None:
    pool = pool_of(4, reserve=0)
    awake(pool)
    assert len(flood(pool, 6)) == 4


def test_a_slot_that_was_used_is_kept_free_again() -> None:
    pool = pool_of(4)
    awake(pool)
    flood(pool, 6)
    pool.add(asked("small", "small"), 1.0)
    pool.dispatch(1.0)
    pool.finish("small", 2.0)
    assert pool.dispatch(2.0) == []
    pool.finish("flood0", 3.0)
    assert len(pool.dispatch(3.0)) == 1


def test_one_request_runs_however_few_slots_there_are() -> None:
    pool = pool_of(1, credit=0.0)
    assert flood(pool, 2) == ["flood0"]


def test_nothing_is_kept_free_when_nobody_has_needed_it_for_long() -> None:
    reserve = Reserve(1)
    heavy = asked("h", "flood")
    reserve.started(heavy, is_favoured=True)
    assert reserve.allows(heavy, PoolSize(1, 1), is_favoured=False)  # alone it needs no slot kept
    reserve.started(asked("s", "small"), is_favoured=True)
    reserve.left(heavy)
    assert not reserve.allows(heavy, PoolSize(2, 1), is_favoured=False)
    for _ in range(MEMORY - 1):
        reserve.started(heavy, is_favoured=False)
        reserve.left(heavy)
        assert not reserve.allows(heavy, PoolSize(2, 1), is_favoured=False)
    reserve.started(heavy, is_favoured=False)
    reserve.left(heavy)
    assert reserve.allows(heavy, PoolSize(2, 1), is_favoured=False)


def test_prompts_are_started_one_after_the_other_but_for_who_is_below_its_share() -> None:
    config = SchedulingConfig(policy="fair", fair_prompts=1, fair_credit_tokens=COST)
    pool = FakePool(build_scheduler(config), FakeReplica(8))
    awake(pool)
    for number in range(4):
        pool.add(replace(asked(f"flood{number}", "flood"), stream=True), 0.0)
    assert pool.dispatch(0.0) == ["flood0"]
    assert pool.dispatch(1.0) == []
    pool.add(replace(asked("small", "small"), stream=True), 2.0)
    assert pool.dispatch(2.0) == ["small"]
    pool.scheduler.observe(FirstToken("flood0"), 3.0)
    assert pool.dispatch(3.0) == []
    pool.scheduler.observe(FirstToken("small"), 4.0)
    assert pool.dispatch(4.0) == ["flood1"]


def test_a_plain_replys_prompt_is_over_when_it_should_be() -> None:
    """Of what has ended it is known that ten tokens of prompt take a second."""
    config = SchedulingConfig(policy="fair", fair_prompts=1, fair_credit_tokens=COST)
    pool = FakePool(build_scheduler(config), FakeReplica(8))
    for number, tokens in enumerate((10, 20, 30)):
        pool.add(replace(asked(f"known{number}", "known"), num_prompt_tokens=tokens), 0.0)
        pool.dispatch(0.0)
        usage = Usage(tokens, 1)
        pool.end(f"known{number}", usage, 0.1 * tokens)
    awake(pool)
    for number in range(2):
        pool.add(asked(f"flood{number}", "flood"), 10.0)
    decision = pool.decide(10.0)
    assert [each.request_id for each in decision.dispatch] == ["flood0"]
    assert decision.wake_at is not None
    assert 10.5 < decision.wake_at < 11.5
    assert pool.dispatch(decision.wake_at) == ["flood1"]


def test_a_crowd_with_credit_does_not_take_the_slots_of_small_ones() -> None:
    pool = pool_of(8, reserve=2, credit=100 * COST)
    awake(pool)
    assert len(flood(pool, 9)) == 6
    pool.add(asked("small", "small"), 1.0)
    assert pool.dispatch(1.0) == ["small"]
