"""The decision core under overload: forecasts, shedding and limits, without a loop or an engine."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from llm_runtime.admission.base import MakeRoom
from llm_runtime.core.errors import Shed
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest, TimeLimits
from llm_runtime.routing.policies.least_load import LeastLoad
from llm_runtime.routing.router import Router
from llm_runtime.runtime.decision import RETRY_AFTER_EVICTION_S, DecisionCore
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.runtime.slots import Slots

BATCH = 8


def request(request_id: str, *, priority: int = 5, num_slots: int = 1) -> RuntimeRequest:
    return RuntimeRequest(
        id=request_id, model="m", kind=EndpointKind.CHAT, body={}, arrived_at=0.0, created=0,
        limits=TimeLimits(request_s=None), num_slots=num_slots, num_prompt_tokens=10, max_tokens=10,
        priority=priority,
    )  # fmt: skip


class Played:
    """A core with one replica; each request is on it for as long as the test says."""

    def __init__(
        self,
        replica: Slots,
        *,
        adaptive: bool = False,
        policy: SchedulingConfig | None = None,
        usage: Usage | None = None,
    ) -> None:
        self.replica = replica
        self.usage = usage or Usage(10, 10)
        self.core = DecisionCore(
            [replica],
            build_scheduler(policy or SchedulingConfig()),
            Router(LeastLoad(), random.Random(1)),
            adaptive_limit=adaptive,
        )
        self.running: dict[str, int] = {}

    def add(self, *requests: RuntimeRequest, now: float) -> list[str]:
        for each in requests:
            self.core.add(each, now)
        return self.decide(now, {each.id: each.num_slots for each in requests})

    def decide(self, now: float, sizes: dict[str, int] | None = None) -> list[str]:
        started = [name for batch in self.core.decide(now).start for name in batch.request_ids]
        for name in started:
            self.running[name] = (sizes or {}).get(name, 1)
            self.replica.num_taken += self.running[name]
            self.replica.num_held += 1
        return started

    def finish(self, name: str, now: float) -> list[str]:
        self.replica.num_taken -= self.running.pop(name)
        self.replica.num_held -= 1
        self.core.finished(name, self.usage, now)
        return self.decide(now)


def busy(played: Played, until: float, *, each_s: float = 1.0) -> float:
    """Keeps one slot after the other busy, with always somebody waiting."""
    now, number = 0.0, 0
    for _ in range(played.replica.num_slots + 1):
        played.add(request(f"b{number}"), now=now)
        number += 1
    while now < until:
        now += each_s / played.replica.num_slots
        played.add(request(f"b{number}"), now=now)
        number += 1
        played.finish(next(iter(played.running)), now)
    return now


def test_nothing_is_foretold_before_it_was_measured_nor_for_who_need_not_wait() -> None:
    played = Played(Slots("a"))
    assert played.core.load(request("x"), 0.0).forecast is None
    played.add(request("1"), request("2"), request("3"), now=0.0)
    assert played.core.load(request("x"), 0.5).forecast is None
    assert played.core.predicted_waits(0.5) == {"interactive": None, "standard": None, "batch": None}


def test_the_forecast_is_the_queue_by_the_rate() -> None:
    """Two slots, each request a second: two leave a second, so behind k waiting it takes about k / 2 more."""
    played = Played(Slots("a"))
    now = busy(played, 40.0)
    for k in range(10):
        played.add(request(f"w{k}"), now=now)
    forecast = played.core.load(request("x"), now).forecast
    assert forecast is not None
    assert forecast.interval_s == pytest.approx(0.5, rel=0.05)
    waiting = played.core.num_waiting
    assert forecast.wait_s == pytest.approx(waiting * 0.5, abs=0.6)
    assert played.core.predicted_waits(now)["standard"] == pytest.approx(forecast.wait_s)


def test_an_hour_after_the_last_who_waited_has_left_nothing_is_slow() -> None:
    """It left by itself, so no decision saw the queue empty."""
    played = Played(Slots("a"))
    now = busy(played, 40.0)
    before = played.core.load(request("x"), now).forecast
    assert played.core.num_waiting == 1
    assert played.core.withdraw(f"b{int(2 * now) + 2}", now)
    for name in list(played.running):
        now += 0.5
        played.finish(name, now)
    now += 3600.0
    played.add(request("1"), request("2"), request("3"), now=now)
    later = played.core.load(request("x"), now + 0.5).forecast
    assert before is not None
    assert later is not None
    assert later.wait_s == pytest.approx(before.wait_s, rel=0.2)


def test_embeddings_have_a_wait_too_although_they_generate_nothing() -> None:
    played = Played(Slots("a", num_slots=1), usage=Usage(10, 0))
    now = 0.0
    for k in range(8):
        played.add(replace(request(f"e{k}"), kind=EndpointKind.EMBEDDINGS), now=now)
    for k in range(4):
        now += 1.0
        played.finish(f"e{k}", now)
    assert played.core.predicted_waits(now)["standard"] == pytest.approx(3 + 0.5)


def test_what_was_refused_by_its_engine_teaches_nothing() -> None:
    played = Played(Slots("a", num_slots=1), usage=Usage(10, 0))
    for k in range(8):
        played.add(request(f"c{k}"), now=0.0)
    for k in range(4):
        played.finish(f"c{k}", 0.001)
    assert played.core.predicted_waits(1.0)["standard"] is None


def test_a_better_class_waits_for_nothing_beside_a_class_that_is_capped() -> None:
    config = SchedulingConfig(policy="priority", batch_slot_share=0.25)
    played = Played(Slots("a", num_slots=4), policy=config)
    played.add(request("1", priority=BATCH), request("2", priority=BATCH), now=0.0)
    assert (played.core.num_waiting, played.core.num_free_slots) == (1, 3)
    assert not played.core.load(request("x", priority=2), 0.0).would_wait
    assert played.core.load(request("y", priority=BATCH), 0.0).would_wait


def test_with_classes_the_wait_is_by_class() -> None:
    played = Played(Slots("a"), policy=SchedulingConfig(policy="priority"))
    now = busy(played, 40.0)
    for k in range(10):
        played.add(request(f"w{k}", priority=BATCH), now=now)
    waits = played.core.predicted_waits(now)
    interactive, standard, batch = (waits[cls] for cls in ("interactive", "standard", "batch"))
    assert interactive is not None
    assert standard is not None
    assert batch is not None
    assert interactive < standard < batch


def test_the_wait_of_an_idle_pool_is_nothing() -> None:
    assert Played(Slots("a")).core.predicted_waits(0.0)["batch"] == 0.0


def test_room_is_made_by_shedding_and_the_shed_are_told_when_to_return() -> None:
    played = Played(Slots("a"))
    played.add(request("1"), request("2"), now=0.0)
    played.add(request("low", priority=BATCH), request("lower", priority=9), request("mid"), now=0.0)
    load = played.core.load(request("x"), 0.0)
    assert load.num_sheddable == 2
    (shed,) = played.core.make_room(MakeRoom(num_requests=1), 0.0)
    name, error = shed
    assert (name, type(error), error.retry_after_s) == ("lower", Shed, RETRY_AFTER_EVICTION_S)
    assert played.core.num_waiting == 2
    assert played.core.load(request("x"), 0.0).num_sheddable == 1
    assert played.core.make_room(MakeRoom(), 0.0) == ()


def test_the_shed_have_places_behind_each_other_once_the_rate_is_known() -> None:
    played = Played(Slots("a"))
    now = busy(played, 40.0)
    played.add(*(request(f"s{k}", priority=BATCH) for k in range(4)), now=now)
    told = [error.retry_after_s for _, error in played.core.make_room(MakeRoom(num_requests=4), now)]
    assert None not in told
    assert told == sorted(told, key=lambda wait: wait or 0.0)
    assert played.core.promises.outstanding == 4


def test_whose_time_is_up_in_the_queue_is_told_its_wait_and_has_a_place() -> None:
    played = Played(Slots("a"))
    assert played.core.return_s(request("x"), 0.0) == RETRY_AFTER_EVICTION_S
    now = busy(played, 40.0)
    played.add(*(request(f"w{k}") for k in range(10)), now=now)
    assert played.core.withdraw("w3", now)
    forecast = played.core.load(request("w3"), now).forecast
    assert forecast is not None
    assert played.core.return_s(request("w3"), now) == forecast.wait_s > 4.0
    assert played.core.promises.outstanding == 1
    played.core.stop()
    assert played.core.return_s(request("w4"), now) == RETRY_AFTER_EVICTION_S


def test_the_limit_in_force_holds_slots_back() -> None:
    played = Played(Slots("a", num_slots=32), adaptive=True)
    started = played.add(*(request(str(k)) for k in range(40)), now=0.0)
    assert len(started) == played.core.in_force("a") == 8
    assert played.core.num_free_slots == 0
    assert len(played.finish("0", 1.0)) == 1


def test_a_class_is_capped_by_its_share_of_the_limit_in_force_not_of_all_slots() -> None:
    policy = SchedulingConfig(policy="priority", batch_slot_share=0.25)
    played = Played(Slots("a", num_slots=32), adaptive=True, policy=policy)
    started = played.add(*(request(str(k), priority=BATCH) for k in range(12)), now=0.0)
    assert played.core.in_force("a") == 8
    assert len(started) == 2
    all_in_force = Played(Slots("a", num_slots=32), policy=policy)
    assert len(all_in_force.add(*(request(str(k), priority=BATCH) for k in range(12)), now=0.0)) == 8


def test_without_it_all_slots_are_in_force() -> None:
    played = Played(Slots("a", num_slots=32))
    assert len(played.add(*(request(str(k)) for k in range(40)), now=0.0)) == 32
    assert played.core.in_force("a") == 32


def test_a_request_wider_than_the_limit_runs_when_the_replica_is_idle() -> None:
    played = Played(Slots("a", num_slots=32), adaptive=True)
    assert played.add(request("one"), now=0.0) == ["one"]
    assert played.add(request("wide", num_slots=16), now=0.0) == []
    played.replica.num_taken -= played.running.pop("one")
    played.replica.num_held -= 1
    played.core.finished("one", Usage(10, 10), 1.0)
    assert played.decide(1.0, {"wide": 16}) == ["wide"]
    assert played.add(request("next"), now=1.0) == []


def test_static_engines_have_no_adaptive_limit() -> None:
    played = Played(Slots("a", num_slots=32, is_static=True), adaptive=True)
    assert played.core.in_force("a") == 32


def test_the_limit_grows_on_an_engine_that_can_take_more() -> None:
    """Every request takes a second, however many there are."""
    played = Played(Slots("a", num_slots=32), adaptive=True)
    played.add(*(request(f"i{k}") for k in range(64)), now=0.0)
    number, ends = 0, [(1.0, name) for name in played.running]
    while ends and ends[0][0] < 40.0:
        now, name = ends.pop(0)
        started = played.finish(name, now)
        number += 1
        started += played.add(request(f"n{number}"), now=now)
        ends += [(now + 1.0, each) for each in started]
    assert played.core.in_force("a") >= 24
