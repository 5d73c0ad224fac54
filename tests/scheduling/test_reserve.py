"""Slots kept free for tenants below their share."""

from __future__ import annotations

from dataclasses import replace

from llm_runtime.core.request import RuntimeRequest
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


def flood(pool: FakePool, num: int, at: float = 0.0) -> list[str]:
    for number in range(num):
        pool.add(asked(f"flood{number}", "flood"), at)
    return pool.dispatch(at)


def test_who_has_used_up_its_credit_leaves_a_slot_free() -> None:
    pool = pool_of(4)
    assert len(flood(pool, 6)) == 3
    pool.add(asked("small", "small"), 1.0)
    assert pool.dispatch(1.0) == ["small"]


def test_without_a_reserve_every_slot_is_busy() -> None:
    pool = pool_of(4, reserve=0)
    assert len(flood(pool, 6)) == 4


def test_a_slot_that_was_used_is_kept_free_again() -> None:
    pool = pool_of(4)
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
    assert reserve.allows(heavy, is_favoured=False, num_slots=1)
    reserve.started(asked("s", "small"), is_favoured=True)
    assert not reserve.allows(heavy, is_favoured=False, num_slots=2)
    for _ in range(MEMORY - 1):
        reserve.started(heavy, is_favoured=False)
        reserve.left(heavy)
        assert not reserve.allows(heavy, is_favoured=False, num_slots=2)
    reserve.started(heavy, is_favoured=False)
    reserve.left(heavy)
    assert reserve.allows(heavy, is_favoured=False, num_slots=2)
