"""The rules of dispatching without a loop, an engine or a clock."""

from __future__ import annotations

import random

import pytest

from llm_runtime.core.errors import (
    BackendCrashed,
    BackendUnavailable,
    LLMRuntimeError,
    QueueTimeout,
    Shed,
)
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest, TimeLimits
from llm_runtime.routing.policies.least_load import LeastLoad
from llm_runtime.routing.router import Router
from llm_runtime.runtime.decision import MAX_ATTEMPTS, Batch, DecisionCore, eviction_error, may_retry
from llm_runtime.scheduling.base import Eviction
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.runtime.slots import Slots


def request(request_id: str, *, num_slots: int = 1, queue_s: float | None = None) -> RuntimeRequest:
    return RuntimeRequest(
        id=request_id, model="m", kind=EndpointKind.CHAT, body={}, arrived_at=0.0, created=0,
        limits=TimeLimits(queue_s=queue_s), num_slots=num_slots, num_prompt_tokens=10, max_tokens=5,
    )  # fmt: skip


def core_of(*replicas: Slots) -> DecisionCore:
    return DecisionCore(replicas, build_scheduler(SchedulingConfig()), Router(LeastLoad(), random.Random(1)))


def take(replica: Slots, batch: Batch) -> None:
    replica.num_taken += len(batch.request_ids)
    replica.num_held += len(batch.request_ids)


def test_what_is_started_has_left_the_queue_and_is_grouped_by_replica() -> None:
    a, b = Slots("a"), Slots("b")
    core = core_of(a, b)
    for name in ("1", "2", "3", "4", "5"):
        core.add(request(name), 0.0)
    assert core.num_waiting_tokens == 75
    started = core.decide(0.0).start
    assert sorted(batch.replica for batch in started) == ["a", "b"]
    assert sorted(name for batch in started for name in batch.request_ids) == ["1", "2", "3", "4"]
    assert core.num_waiting == 1
    assert core.num_waiting_tokens == 15
    for replica in (a, b):
        take(replica, next(batch for batch in started if batch.replica == replica.id))
    assert core.decide(0.1).start == ()
    assert core.num_running == 4
    a.num_taken = 1
    core.finished("1", Usage(), 0.2)
    assert core.decide(0.2).start == (Batch("a", ("5",)),)
    assert core.num_waiting_tokens == 0


def test_only_ready_replicas_count_and_are_used() -> None:
    core = core_of(Slots("down", ready=False), Slots("leaving", draining=True), Slots("up"))
    assert core.num_slots == 4
    assert core.max_request_slots == 2
    for name in ("1", "2", "3"):
        core.add(request(name), 0.0)
    assert core.decide(0.0).start == (Batch("up", ("1", "2")),)


def test_a_static_replica_takes_a_batch_and_nothing_beside_it() -> None:
    replica = Slots("a", num_slots=4, is_static=True)
    core = core_of(replica)
    core.add(request("1"), 0.0)
    (batch,) = core.decide(0.0).start
    take(replica, batch)
    core.add(request("2"), 0.1)
    assert core.decide(0.1).start == ()
    assert core.load(request("3"), 0.0).would_wait


@pytest.mark.parametrize(("num_slots", "would_wait"), [(1, False), (2, False), (3, True)])
def test_the_gate_sees_whether_a_request_would_wait(num_slots: int, would_wait: bool) -> None:
    core = core_of(Slots("a"))
    load = core.load(request("1", num_slots=num_slots), 0.0)
    assert load.would_wait is would_wait
    assert (core.num_free_slots, core.num_slots, load.num_waiting) == (2, 2, 0)


def test_overdue_requests_are_evicted_with_their_error() -> None:
    replica = Slots("a", num_slots=1, num_taken=1)
    core = core_of(replica)
    core.add(request("1", queue_s=2.0), 0.0)
    assert core.decide(0.0).wake_at == 2.0
    ((name, error),) = core.decide(2.0).evict
    assert name == "1"
    assert isinstance(error, QueueTimeout)
    assert core.num_waiting == 0
    assert not core.withdraw("1", 2.0)


def test_a_requeued_request_keeps_its_place() -> None:
    replica = Slots("a", num_slots=1)
    core = core_of(replica)
    core.add(request("1"), 0.0)
    assert core.decide(0.0).start == (Batch("a", ("1",)),)
    core.add(request("2"), 1.0)
    core.requeue(request("1"), 0.0, 2.0)
    assert core.num_waiting_tokens == 30
    assert core.decide(2.0).start == (Batch("a", ("1",)),)


def test_an_id_is_queued_once() -> None:
    core = core_of(Slots("a"))
    core.add(request("1"), 0.0)
    with pytest.raises(ValueError, match="already queued"):
        core.add(request("1"), 0.0)
    assert core.num_waiting_tokens == 15


def test_a_stopped_core_decides_nothing_and_can_still_be_left() -> None:
    core = core_of(Slots("a"))
    core.add(request("1"), 0.0)
    core.stop()
    assert core.decide(0.0).start == ()
    assert core.withdraw("1", 0.0)
    assert core.num_waiting == 0


@pytest.mark.parametrize(
    ("reason", "kind"), [("queue_timeout", QueueTimeout), ("shed", Shed), ("would_miss_deadline", Shed)]
)
def test_every_eviction_says_why_and_when_to_come_back(reason: str, kind: type[LLMRuntimeError]) -> None:
    error = eviction_error(Eviction("1", reason), 2.5)
    assert isinstance(error, kind)
    assert error.reason == reason
    assert error.retry_after_s == 2.5


@pytest.mark.parametrize(
    ("error", "begun", "num_attempts", "expected"),
    [
        (BackendUnavailable("no"), False, 1, True),
        (BackendUnavailable("no"), True, 1, False),
        (BackendUnavailable("no"), False, MAX_ATTEMPTS, False),
        (BackendUnavailable("no", retry_after_s=3.0), False, 1, False),
        (BackendCrashed("gone"), False, 1, False),
    ],
)
def test_only_what_no_engine_took_is_tried_again(
    error: LLMRuntimeError, begun: bool, num_attempts: int, expected: bool
) -> None:
    assert may_retry(error, begun=begun, num_attempts=num_attempts) is expected
