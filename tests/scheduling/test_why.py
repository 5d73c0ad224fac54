"""Why the first in the queue waits: each reason in a pool where it is so, and none where nobody waits."""

from __future__ import annotations

from llm_runtime.scheduling.base import (
    BATCH_FORMING,
    CLASS_CAP,
    NEEDS_MORE_SLOTS,
    NO_ENGINE_READY,
    NO_FREE_SLOT,
    SLOTS_KEPT,
    STARTING,
    Head,
)
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.order import Waiting
from llm_runtime.scheduling.presets import build_scheduler
from llm_runtime.scheduling.reserve import Reserve
from llm_runtime.scheduling.why import Obstacles, why_it_waits
from llm_runtime.telemetry.base import HEAD_REASONS
from tests.scheduling.pools import FakeCapacity, FakePool, FakeReplica, make_request
from tests.scheduling.test_batching import taught


def pool(*replicas: FakeReplica, **settings: object) -> FakePool:
    return FakePool(build_scheduler(SchedulingConfig(**settings)), *replicas)  # type: ignore[arg-type]


def head(pool: FakePool, now: float) -> Head:
    found = pool.scheduler.head(now, FakeCapacity(pool.replicas))
    assert found is not None
    return found


def test_telemetry_knows_exactly_these_words() -> None:
    reasons = {
        NO_ENGINE_READY,
        NO_FREE_SLOT,
        NEEDS_MORE_SLOTS,
        CLASS_CAP,
        SLOTS_KEPT,
        BATCH_FORMING,
        STARTING,
    }
    assert set(HEAD_REASONS) == reasons


def test_nobody_waits() -> None:
    one = pool(FakeReplica(1))
    assert one.scheduler.head(0.0, FakeCapacity(one.replicas)) is None
    one.add(make_request("a"), 0.0)
    assert head(one, 0.0).reason == STARTING
    one.decide(0.0)
    assert one.scheduler.head(0.0, FakeCapacity(one.replicas)) is None


def test_no_slot_and_no_engine() -> None:
    one = pool(FakeReplica(1))
    for name in "abc":
        one.add(make_request(name), 1.0)
        one.decide(1.0)
    told = head(one, 3.0)
    assert (told.request.id, told.queued_at, told.reason, told.until) == ("b", 1.0, NO_FREE_SLOT, None)
    one.replicas["r0"].up = False
    assert head(one, 3.0).reason == NO_ENGINE_READY


def test_too_few_slots_on_one_replica_although_there_are_enough_in_all() -> None:
    two = pool(FakeReplica(2), FakeReplica(2))
    for name in "ab":
        two.add(make_request(name, num_slots=1), 0.0)
    two.decide(0.0)
    two.replicas["r0"].running, two.replicas["r1"].running = (
        {"a": make_request("a")},
        {"b": make_request("b")},
    )
    two.add(make_request("wide", num_slots=2), 0.0)
    assert two.dispatch(0.0) == []
    assert head(two, 0.0).reason == NEEDS_MORE_SLOTS


def test_a_cap_of_its_class_and_until_when() -> None:
    capped = pool(FakeReplica(8), policy="priority", batch_slot_share=0.125)
    for name in "ab":
        capped.add(make_request(name, priority=8), 0.0)
    assert capped.dispatch(0.0) == ["a"]
    told = head(capped, 0.0)
    assert (told.request.id, told.reason, told.until) == ("b", CLASS_CAP, None)
    # Who is better goes first, and is then the head.
    capped.add(make_request("c", priority=1), 0.0)
    assert head(capped, 0.0).request.id == "c"
    assert head(capped, 0.0).reason == STARTING


def test_slots_that_are_kept_for_others() -> None:
    reserve = Reserve(1)
    reserve.started(make_request("short"), is_favoured=True)
    entry, replicas = Waiting(make_request("long"), 0.0, 0), {"r0": FakeReplica(2)}
    replicas["r0"].running["short"] = make_request("short")
    kept = Obstacles(reserve=reserve)
    assert why_it_waits(entry, FakeCapacity(replicas), kept, 0.0).reason == SLOTS_KEPT
    favoured = Obstacles(reserve=reserve, is_favoured=True)
    assert why_it_waits(entry, FakeCapacity(replicas), favoured, 0.0).reason == STARTING


def test_a_batch_that_waits_for_company_until_its_window_ends() -> None:
    rounds = taught()
    until = rounds.open()
    assert until is not None
    assert rounds.batching.held_until(rounds.now) == until
    assert rounds.batching.held_until(until) is None
    replicas = {"r0": FakeReplica(4, static=True)}
    entry = Waiting(make_request("a"), rounds.now, 0)
    held = Obstacles(held_until=until)
    told = why_it_waits(entry, FakeCapacity(replicas), held, rounds.now)
    assert (told.reason, told.until) == (BATCH_FORMING, until)
    replicas["r0"].running["b"] = make_request("b")
    assert why_it_waits(entry, FakeCapacity(replicas), held, rounds.now).reason == NO_FREE_SLOT
    rounds.run()
    assert rounds.batching.held_until(rounds.now) is None


def test_explaining_changes_nothing() -> None:
    asked, left = pool(FakeReplica(2), policy="fair"), pool(FakeReplica(2), policy="fair")
    for number in range(12):
        now = number / 10
        for one in (asked, left):
            one.add(make_request(f"{number}", priority=number % 10, num_slots=1 + number % 2), now)
            one.decide(now)
        for _ in range(3):
            asked.scheduler.head(now, FakeCapacity(asked.replicas))
        if number % 3 == 2:
            assert list(asked.running) == list(left.running)
            for one in (asked, left):
                one.finish(next(iter(one.running)), now)
                one.decide(now)
    assert list(asked.running) == list(left.running)
