"""Orders inside a flow: deadlines, and the shortest first as far as that can be known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest, TimeLimits
from llm_runtime.scheduling.base import Eviction, RequestFinished, Scheduler
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.history import History
from llm_runtime.scheduling.lateness import OPTIMISM, hopeless_at
from llm_runtime.scheduling.order import Shortest, Waiting, deadline, deadline_at
from llm_runtime.scheduling.presets import build_scheduler
from tests.scheduling.pools import FakePool, FakeReplica, make_request

NO_LIMITS = TimeLimits(request_s=None)


def asked(
    name: str, *, tokens: int = 10, tenant: str = "a", arrived: float = 0.0, **limits: Any
) -> RuntimeRequest:
    request = replace(make_request(name, max_tokens=tokens), tenant=tenant, arrived_at=arrived)
    return replace(request, limits=TimeLimits(**{"request_s": None, **limits}), stream=True)


def order_of(scheduler: Scheduler, requests: list[RuntimeRequest], now: float = 0.0) -> list[str]:
    pool = FakePool(scheduler, FakeReplica(1))
    for request in requests:
        pool.add(request, now)
    started = []
    while dispatched := pool.dispatch(now):
        started += dispatched
        pool.finish(dispatched[0], now)
    return started


# ---- deadline


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"request_s": 30.0}, 37.0),
        ({"request_s": 30.0, "total_s": 20.0}, 27.0),
        ({"request_s": 30.0, "first_byte_s": 5.0}, 12.0),
        ({}, float("inf")),
    ],
)
def test_the_deadline_is_the_first_limit_that_ends_it(limits: dict[str, Any], expected: float) -> None:
    request = asked("a", arrived=7.0, **limits)
    assert deadline_at(request) == expected
    assert deadline(Waiting(request, 9.0, 0)) == expected


def test_the_earliest_deadline_goes_first_and_those_without_come_last() -> None:
    requests = [asked("none"), asked("late", total_s=9.0), asked("none2"), asked("soon", total_s=5.0)]
    assert order_of(build_scheduler(SchedulingConfig(policy="deadline")), requests) == [
        "soon", "late", "none", "none2",
    ]  # fmt: skip


def test_a_better_class_goes_before_an_earlier_deadline() -> None:
    live = replace(asked("live", total_s=50.0), priority=1)
    requests = [asked("soon", total_s=5.0), live]
    assert order_of(build_scheduler(SchedulingConfig(policy="deadline")), requests) == ["live", "soon"]


def taught(prompt_s: float, token_s: float) -> History:
    history = History()
    for prompt, tokens in ((100, 1), (1, 100), (50, 50)):
        request = replace(make_request("x", max_tokens=1000), num_prompt_tokens=prompt)
        history.learn(request, Usage(prompt, tokens), prompt * prompt_s + tokens * token_s, None)
    return history


def test_what_cannot_make_it_any_more_is_hopeless() -> None:
    history = taught(0.01, 0.1)
    history.predict = lambda request: 20.0
    request = replace(asked("a", arrived=3.0, total_s=10.0), num_prompt_tokens=100)
    assert hopeless_at(request, history) == pytest.approx(13.0 - OPTIMISM * (1.0 + 2.0))
    stream = replace(request, limits=TimeLimits(request_s=10.0))
    assert hopeless_at(stream, history) == pytest.approx(13.0 - OPTIMISM * 1.0)
    plain = replace(stream, stream=False)
    assert hopeless_at(plain, history) == pytest.approx(13.0 - OPTIMISM * 3.0)
    assert hopeless_at(replace(request, limits=NO_LIMITS), history) is None
    assert hopeless_at(request, History()) == 13.0


def test_the_hopeless_leave_the_queue_in_time_for_others() -> None:
    pool = FakePool(build_scheduler(SchedulingConfig(policy="deadline")), FakeReplica(1))
    pool.add(asked("running"), 0.0)
    assert pool.dispatch(0.0) == ["running"]
    pool.add(asked("hopeless", total_s=2.0), 1.0)
    pool.add(asked("patient", total_s=60.0), 1.0)
    assert pool.decide(1.0).wake_at == 2.0
    decision = pool.decide(2.0)
    assert decision.evict == (Eviction("hopeless", "would_miss_deadline"),)
    pool.finish("running", 3.0)
    assert pool.dispatch(3.0) == ["patient"]


def test_whichever_limit_comes_first_names_the_reason() -> None:
    pool = FakePool(build_scheduler(SchedulingConfig(policy="deadline")), FakeReplica(1))
    pool.add(asked("running"), 0.0)
    pool.dispatch(0.0)
    pool.add(asked("waits", total_s=9.0, queue_s=4.0), 0.0)
    pool.add(asked("misses", total_s=4.0, queue_s=9.0), 0.0)
    evicted = {eviction.request_id: eviction.reason for eviction in pool.decide(4.0).evict}
    assert evicted == {"waits": "queue_timeout", "misses": "would_miss_deadline"}


def test_other_policies_evict_nobody_for_being_late() -> None:
    for policy in ("fifo", "priority", "fair", "shortest"):
        pool = FakePool(build_scheduler(SchedulingConfig(policy=policy)), FakeReplica(1))
        pool.add(asked("a", total_s=1.0), 0.0)
        assert pool.decide(5.0).evict == ()


def test_time_on_an_engine_brings_no_new_deadline() -> None:
    pool = FakePool(build_scheduler(SchedulingConfig(policy="deadline")), FakeReplica(1))
    pool.add(asked("a", total_s=10.0, queue_s=3.0), 0.0)
    pool.dispatch(0.0)
    pool.replicas["r0"].up = False
    pool.requeue("a", 9.0)
    decision = pool.decide(9.0)
    assert decision.evict == ()
    assert decision.wake_at == 10.0
    assert pool.decide(10.0).evict == (Eviction("a", "would_miss_deadline"),)


# ---- shortest


def trusted(lengths: dict[str, float]) -> History:
    """One that knows lengths by tenant and has learnt to trust them."""
    history = History(lambda request: lengths[request.tenant])
    for number in range(40):
        tokens = 1 + number % 20
        history.service.learn(1, tokens, tokens)
        history.trust.learn(tokens, tokens)
    return history


def keys(order: Shortest, *queued: tuple[str, float]) -> list[float]:
    return [order(Waiting(asked("x", tenant=tenant), at, 0)) for tenant, at in queued]


def test_a_request_is_overtaken_in_proportion_to_its_own_length() -> None:
    order = Shortest(trusted({"short": 1.0, "long": 11.0}), patience=3.0)
    base, just, never = keys(order, ("long", 100.0), ("short", 129.9), ("short", 130.1))
    assert just < base < never


def test_the_size_that_was_predicted_is_kept_for_the_comparison() -> None:
    entry = Waiting(asked("x", tenant="long"), 5.0, 0)
    Shortest(trusted({"long": 11.0}), patience=3.0)(entry)
    assert entry.predicted_s == pytest.approx(11.0, rel=0.05)


def test_to_ask_for_a_key_teaches_nothing() -> None:
    """What only wants to know how long it would wait must not move the mean by which others count as long."""
    lengths = {"short": 1.0, "long": 11.0, "huge": 1e6}
    asked_about, left_alone = (
        Shortest(trusted(lengths), patience=3.0),
        Shortest(trusted(lengths), patience=3.0),
    )
    for order in (asked_about, left_alone):
        for tenant in ("short", "long"):
            entry = Waiting(asked("x", tenant=tenant), 0.0, 0)
            order(entry)
            order.came(entry)
    keys(asked_about, *(("huge", 1.0) for _ in range(50)))
    for order in (asked_about, left_alone):
        long = Waiting(asked("x", tenant="long"), 0.0, 0)
        order(long)
        assert not long.is_short


def test_without_trust_it_is_fifo() -> None:
    history = History(lambda request: 1000.0 if request.tenant == "long" else 1.0)
    history.service.learn(1, 1, 1.0)
    order = Shortest(history, patience=8.0)
    assert keys(order, ("long", 1.0), ("short", 2.0)) == [1.0, 2.0]


def shortest_pool(lengths: dict[str, int], predict: Any = None) -> list[str]:
    """Serves 60 requests of each tenant to teach it, then tells the order of one of each."""
    config = SchedulingConfig(policy="shortest")
    pool = FakePool(build_scheduler(config, predict=predict), FakeReplica(1))
    now = 0.0
    for number in range(60):
        for tenant, tokens in lengths.items():
            name = f"{tenant}{number}"
            pool.add(asked(name, tokens=500, tenant=tenant), now)
            assert pool.dispatch(now) == [name]
            now += tokens * 0.1
            del pool.running[name], pool.replicas["r0"].running[name]
            pool.scheduler.observe(RequestFinished(name, Usage(10, tokens)), now)
    for tenant in lengths:
        pool.add(asked(tenant, tokens=500, tenant=tenant), now)
    started = []
    while dispatched := pool.dispatch(now):
        started += dispatched
        pool.finish(dispatched[0], now)
    return started


def test_it_learns_who_is_short() -> None:
    assert shortest_pool({"long": 200, "middle": 60, "short": 5}) == ["short", "middle", "long"]


def test_a_predictor_that_is_always_wrong_is_not_followed() -> None:
    wrong = {"long": 5.0, "middle": 60.0, "short": 200.0}
    order = shortest_pool({"long": 200, "middle": 60, "short": 5}, lambda request: wrong[request.tenant])
    assert order == ["long", "middle", "short"]
