"""Whose work a request would wait behind, by policy."""

from __future__ import annotations

import pytest

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import PriorityClass
from llm_runtime.scheduling.base import RequestFinished, Scheduler
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.scheduling.pools import FakePool, FakeReplica, make_request

INTERACTIVE, STANDARD, BATCH = 1, 5, 8


def queued(config: SchedulingConfig, *priorities: int) -> Scheduler:
    scheduler = build_scheduler(config)
    for number, priority in enumerate(priorities):
        scheduler.add(make_request(str(number), priority=priority), float(number))
    return scheduler


def ahead(scheduler: Scheduler, priority: int, now: float, tenant: str = "t") -> float:
    """In requests: all are of one size."""
    outlook = scheduler.outlook(make_request("new", priority=priority, tenant=tenant), now)
    return outlook.ahead / outlook.work


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (SchedulingConfig(policy="fifo"), (6.0, 6.0, 6.0)),
        (SchedulingConfig(policy="priority"), (1.0, 3.0, 6.0)),
        (SchedulingConfig(policy="deadline"), (1.0, 3.0, 6.0)),
    ],
)
def test_better_classes_and_earlier_ones_of_the_same_are_ahead(
    config: SchedulingConfig, expected: tuple[float, float, float]
) -> None:
    scheduler = queued(config, BATCH, BATCH, BATCH, STANDARD, STANDARD, INTERACTIVE)
    assert [ahead(scheduler, level, 6.0) for level in (INTERACTIVE, STANDARD, BATCH)] == [
        pytest.approx(each) for each in expected
    ]


def test_with_ageing_what_has_waited_long_enough_is_ahead_too() -> None:
    """A batch request is three levels, 30 s, behind a standard one; the queue's ages reach from 0 to 60 s."""
    config = SchedulingConfig(policy="priority", priority_aging_boost_interval_s=10.0)
    scheduler = build_scheduler(config)
    for number in range(60):
        scheduler.add(make_request(str(number), priority=BATCH), float(number))
    assert ahead(scheduler, STANDARD, 60.0) == pytest.approx(30, abs=1)


def test_a_fair_share_counts_of_the_others_as_much_as_is_served_meanwhile() -> None:
    scheduler = build_scheduler(SchedulingConfig(policy="fair"))
    for number in range(20):
        scheduler.add(make_request(f"f{number}", tenant="flood"), 0.0)
    scheduler.add(make_request("own", tenant="light"), 0.0)
    assert ahead(scheduler, STANDARD, 1.0, "light") == pytest.approx(1 + 2)
    assert ahead(scheduler, STANDARD, 1.0, "flood") == pytest.approx(20 + 1)
    assert ahead(scheduler, STANDARD, 1.0, "new") == pytest.approx(1 + 1)


def test_of_a_thousand_tenants_a_sample_tells_nearly_the_same() -> None:
    scheduler = build_scheduler(SchedulingConfig(policy="fair"))
    for number in range(3000):
        scheduler.add(make_request(str(number), tenant=f"t{number % 1000}"), 0.0)
    assert ahead(scheduler, STANDARD, 1.0, "new") == pytest.approx(1000, rel=0.01)
    assert ahead(scheduler, STANDARD, 1.0, "t0") == pytest.approx(3000, rel=0.01)


def test_only_strictly_better_classes_overtake_who_waits() -> None:
    request = make_request("x", priority=BATCH)
    strict = build_scheduler(SchedulingConfig(policy="priority"))
    assert strict.outlook(request, 0.0).overtaken_by == (PriorityClass.INTERACTIVE, PriorityClass.STANDARD)
    ageing = build_scheduler(SchedulingConfig(policy="priority", priority_aging_boost_interval_s=1.0))
    assert ageing.outlook(request, 0.0).overtaken_by == ()
    assert build_scheduler(SchedulingConfig()).outlook(request, 0.0).overtaken_by == ()


def test_what_could_be_shed_is_ahead_only_where_classes_are_not_told_apart() -> None:
    fifo = queued(SchedulingConfig(), BATCH, BATCH, STANDARD)
    outlook = fifo.outlook(make_request("x", priority=STANDARD), 3.0)
    assert outlook.sheddable_ahead == pytest.approx(2 * outlook.work)
    assert fifo.outlook(make_request("x", priority=BATCH), 3.0).sheddable_ahead == 0
    by_class = queued(SchedulingConfig(policy="priority"), BATCH, BATCH, STANDARD)
    assert by_class.outlook(make_request("x", priority=STANDARD), 3.0).sheddable_ahead == 0


def test_of_a_capped_class_the_share_of_slots_is_told() -> None:
    scheduler = build_scheduler(SchedulingConfig(policy="priority", batch_slot_share=0.25))
    assert scheduler.outlook(make_request("x", priority=BATCH), 0.0).slot_share == 0.25
    assert scheduler.outlook(make_request("x", priority=STANDARD), 0.0).slot_share == 1.0


def test_work_follows_what_answers_have_been() -> None:
    scheduler = build_scheduler(SchedulingConfig())
    pool = FakePool(scheduler, FakeReplica(1))
    before = scheduler.outlook(make_request("x"), 0.0).work
    for number in range(30):
        pool.add(make_request(str(number)), float(number))
        assert pool.dispatch(float(number)) == [str(number)]
        scheduler.observe(RequestFinished(str(number), Usage(10, 1)), number + 0.5)
        pool.finish(str(number), number + 0.5)
    after = scheduler.outlook(make_request("x"), 31.0).work
    assert after < before
    assert scheduler.prompt_weight == 0.0, "prompts and answers of one proportion cannot be told apart"
