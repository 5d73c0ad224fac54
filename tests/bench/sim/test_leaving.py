"""Who leaves the simulated pool before its end: limits of time, patience, preemption."""

from __future__ import annotations

import pytest

from llm_runtime.bench.records import Status
from llm_runtime.bench.sim.config import ContinuousModel
from llm_runtime.bench.sim.curve import constant, line
from llm_runtime.bench.sim.policies import Policies, scheduled
from llm_runtime.core.request import RuntimeRequest, TimeLimits
from llm_runtime.scheduling.base import Capacity, Decision, Dispatched, SchedulingEvent
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.bench.sim.builders import ONE_AT_A_TIME, ask, ends, fifo, reasons, run_of
from tests.support.schedulers import Forwarding


class PreemptFor(Forwarding):
    """FIFO, and preempts request 0 when another one is added."""

    def __init__(self) -> None:
        super().__init__(build_scheduler(SchedulingConfig(enable_batching=False)))
        self.events: list[SchedulingEvent] = []
        self._wanted: tuple[str, ...] = ()

    def add(self, request: RuntimeRequest, now: float) -> None:
        super().add(request, now)
        if request.id != "0":
            self._wanted = ("0",)

    def observe(self, event: SchedulingEvent, now: float) -> None:
        self.events.append(event)
        super().observe(event, now)

    def decide(self, now: float, capacity: Capacity) -> Decision:
        decision = super().decide(now, capacity)
        wanted, self._wanted = self._wanted, ()
        return Decision(decision.dispatch, decision.evict, wanted, decision.wake_at)


def test_a_preempted_request_returns_to_its_place_and_its_slot_is_free_after_the_step() -> None:
    scheduler = PreemptFor()
    model = ContinuousModel(1, constant(0.0), 0.01, 10)
    asks = [ask(0, 0.0, prompt=100, output=1), ask(1, 0.05, prompt=10, output=1)]
    result = run_of(asks, model, policies=Policies(lambda: scheduler))
    by_number = {job.ask.number: job for job in result.jobs}
    # It is first in the queue again, so it runs again: what it had computed is lost.
    assert by_number[0].dispatched_at == pytest.approx(0.1)
    assert by_number[0].finished_at == pytest.approx(1.1)
    assert by_number[1].finished_at == pytest.approx(1.2)
    dispatched = [event.request_id for event in scheduler.events if isinstance(event, Dispatched)]
    assert dispatched == ["0", "0", "1"]
    assert by_number[0].num_attempts == 1


def test_what_has_sent_tokens_is_not_preempted() -> None:
    asks = [ask(0, 0.0, prompt=1, output=100), ask(1, 0.5, prompt=1, output=1)]
    model = ContinuousModel(1, line(0.01, 0.0), 0.01, 10)
    result = run_of(asks, model, policies=Policies(PreemptFor))
    assert ends(result)[0] == pytest.approx(1.0)


def test_running_work_that_is_shed_ends_with_tokens_and_its_slot_goes_to_who_asked() -> None:
    shedding = scheduled(SchedulingConfig(policy="priority", preempt="batch"))
    asks = [
        ask(0, 0.0, prompt=1, output=100, priority=8),
        ask(1, 0.5, prompt=1, output=1, priority=2),
    ]
    result = run_of(asks, ContinuousModel(1, line(0.01, 0.0), 0.01, 10), policies=shedding)
    assert reasons(result) == {0: "preempted", 1: None}
    assert ends(result)[0] == pytest.approx(0.5)
    assert ends(result)[1] == pytest.approx(0.51)
    assert 0 < result.jobs[0].num_generated < 100


# ---- the engine's own queue


def test_who_loses_patience_leaves_queue_or_engine() -> None:
    asks = [
        ask(0, 0.0, prompt=1000, output=1, patience_s=0.25),
        ask(1, 0.0, prompt=1, output=1, patience_s=0.05),
        ask(2, 0.0, prompt=1, output=1),
        ask(3, 0.0, prompt=1, output=5, patience_s=30.0),
    ]
    one_slot = ContinuousModel(1, constant(0.0), 0.01, 10)
    result = run_of(asks, one_slot)
    assert reasons(result) == {0: "client_gone", 1: "client_gone", 2: None, 3: None}
    assert ends(result)[0] == 0.25
    # The engine lets go at the end of its step of ten tokens.
    assert result.jobs[2].dispatched_at == pytest.approx(0.3)
    records = {record.number: record for record in result.records}
    assert (records[1].status, records[1].error) == (Status.FAILED, "timeout")
    assert records[1].prompt_tokens is None


def test_a_limit_of_waiting_evicts() -> None:
    limits = TimeLimits(queue_s=0.5, request_s=None)
    asks = [ask(0, output=99), ask(1, 0.1, output=1, limits=limits)]
    result = run_of(asks, ONE_AT_A_TIME, policies=fifo(enable_batching=False))
    assert reasons(result) == {0: None, 1: "queue_timeout"}
    assert ends(result)[1] == pytest.approx(0.6)
    (record,) = [record for record in result.records if record.number == 1]
    assert (record.error, record.http_status, record.retry_after_s) == ("http_503", 503, 1.0)


def test_a_limit_of_the_request_ends_it_before_its_first_token_or_a_plain_one_before_its_end() -> None:
    """Two slots, 40 tokens each of 25 ms: nobody's second token is late for a stream, a plain reply's is."""
    limits = TimeLimits(request_s=0.5, idle_s=None)
    asks = [
        ask(0, output=40, limits=limits),
        ask(1, output=40, limits=limits, stream=False),
        ask(2, 0.1, output=5, limits=limits),
        ask(3, 0.1, output=1, limits=limits),
    ]
    model = ContinuousModel(2, constant(0.025), 0.0, 512)
    result = run_of(asks, model)
    assert reasons(result) == {0: None, 1: "deadline_exceeded", 2: None, 3: "queue_timeout"}
    assert ends(result)[1] == pytest.approx(0.5)
    assert ends(result)[3] == pytest.approx(0.6)
    assert result.jobs[2].dispatched_at == pytest.approx(0.525, abs=0.026)
