"""The simulation as a whole: theory where theory knows, and what happens to requests when things go wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean

import pytest

from llm_runtime.admission.base import Load
from llm_runtime.admission.config import AdmissionConfig
from llm_runtime.admission.controller import AdmissionController
from llm_runtime.bench import metrics
from llm_runtime.bench.config import Slo
from llm_runtime.bench.records import decode, encode
from llm_runtime.bench.sim.config import (
    Change,
    ContinuousModel,
    ReplicaConfig,
    SimConfig,
    Trouble,
)
from llm_runtime.bench.sim.curve import constant, line
from llm_runtime.bench.sim.feed import OpenFeed
from llm_runtime.bench.sim.job import Ask
from llm_runtime.bench.sim.policies import Gates, Policies, capacity_gate
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.core.errors import RateLimited
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest, TimeLimits
from llm_runtime.runtime.decision import MAX_ATTEMPTS
from tests.bench.sim.builders import MOCK, ONE_AT_A_TIME, ask, ends, fifo, reasons, run_of

TWO_SLOTS = ContinuousModel(2, constant(0.1), 0.01, 100)


# ---- theory


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_server_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    """Poisson arrivals, services of 1 to 39 steps: mean wait = rate * E[S^2] / (2 * (1 - load))."""
    source = random.Random(5)
    rate = load / 0.2
    at, asks = 0.0, []
    for number in range(15_000):
        at += source.expovariate(rate)
        asks.append(ask(number, at, output=source.randint(1, 39)))
    result = run_of(asks, ONE_AT_A_TIME, policies=fifo(enable_batching=False))
    square = fmean((0.01 * n) ** 2 for n in range(1, 40))
    expected = rate * square / (2 * (1 - load))
    assert fmean(result.queue_waits_s()) == pytest.approx(expected, rel=0.1)
    assert result.utilisation.busy == pytest.approx(load, rel=0.02)


def test_several_slots_wait_as_erlang_says() -> None:
    """Four slots, steps that do not slow each other down, geometric lengths: nearly M/M/4."""
    source = random.Random(3)
    slots, load, service_s = 4, 0.6, 1.0
    rate = slots * load / service_s
    at, asks = 0.0, []
    for number in range(15_000):
        at += source.expovariate(rate)
        asks.append(ask(number, at, prompt=1, output=1 + int(source.expovariate(1.0) * 1000)))
    model = ContinuousModel(slots, constant(0.001), 0.0, 1000)
    result = run_of(asks, model)
    a = slots * load
    top = a**slots / 24 / (1 - load)
    wait = top / (1 + a + a**2 / 2 + a**3 / 6 + top)
    assert fmean(result.queue_waits_s()) == pytest.approx(wait * service_s / (slots * (1 - load)), rel=0.1)


def test_it_is_the_same_for_the_same_seed_and_differs_for_others() -> None:
    asks = [ask(number, number * 0.01, output=1 + number % 7) for number in range(200)]

    def placed(seed: int) -> list[str | None]:
        config = SimConfig((ReplicaConfig(TWO_SLOTS),) * 3)
        return [job.replica for job in simulate(config, OpenFeed(asks), fifo(), seed).jobs]

    assert placed(1) == placed(1)
    assert placed(1) != placed(2)


# ---- the way of a request


def test_slots_are_shared_and_the_rest_waits_in_order() -> None:
    result = run_of([ask(n, n * 0.001, prompt=10, output=1) for n in range(4)], TWO_SLOTS)
    # A step takes 0.1 s and 0.01 s for each prompt token; the second request missed the first step.
    assert [round(at or 0, 6) for at in ends(result).values()] == [0.2, 0.5, 0.5, 0.7]
    assert [round(wait, 6) for wait in result.queue_waits_s()] == [0.0, 0.0, 0.198, 0.497]


def test_the_way_to_the_server_and_back_is_in_every_latency() -> None:
    result = run_of([ask(0, 1.0, prompt=10, output=2)], TWO_SLOTS, network_s=0.25)
    (record,) = result.records
    assert metrics.ttft_s(record) == pytest.approx(0.25 + 0.2 + 0.25)
    assert metrics.e2e_s(record) == pytest.approx(0.25 + 0.3 + 0.25)


def test_a_slow_replica_is_slow_from_the_instant_on() -> None:
    asks = [ask(0, 0.0, prompt=1, output=11), ask(1, 5.0, prompt=1, output=11)]
    model = ContinuousModel(2, line(0.1, 0.0), 0.0, 100)
    result = run_of(asks, replicas=(ReplicaConfig(model, changes=(Change(4.0, 3.0),)),))
    e2e = [metrics.e2e_s(record) for record in result.records]
    assert e2e == pytest.approx([1.0, 3.0])


def test_a_crash_fails_what_ran_and_lets_the_rest_wait() -> None:
    crash = Trouble(0.35, 2.0)
    asks = [ask(n, 0.0, prompt=10, output=9) for n in range(3)]
    result = run_of(asks, replicas=(ReplicaConfig(TWO_SLOTS, troubles=(crash,)),))
    assert reasons(result) == {0: "backend_crashed", 1: "backend_crashed", 2: None}
    assert ends(result)[0] == 0.35
    assert result.jobs[2].dispatched_at == 2.0


def test_others_take_over_while_a_replica_is_down() -> None:
    asks = [ask(n, 1.0 + n * 0.01, output=2) for n in range(4)]
    replicas = (ReplicaConfig(TWO_SLOTS, troubles=(Trouble(0.5, 50.0),)), ReplicaConfig(TWO_SLOTS))
    result = run_of(asks, replicas=replicas)
    assert {job.replica for job in result.jobs} == {"r1"}
    assert set(reasons(result).values()) == {None}


def test_a_replica_that_refuses_is_tried_again_and_then_given_up() -> None:
    refusing = Trouble(0.0, 0.1, kind="refuse", delay_s=0.01)
    result = run_of([ask(0)], replicas=(ReplicaConfig(TWO_SLOTS, troubles=(refusing,)),))
    (job,) = result.jobs
    assert job.num_attempts == MAX_ATTEMPTS
    assert reasons(result) == {0: "backend_unavailable"}
    assert job.finished_at == pytest.approx(0.01 * MAX_ATTEMPTS)


def test_a_refused_request_runs_when_the_refusals_end() -> None:
    refusing = Trouble(0.0, 0.015, kind="refuse", delay_s=0.01)
    result = run_of([ask(0, prompt=1, output=1)], replicas=(ReplicaConfig(TWO_SLOTS, troubles=(refusing,)),))
    (job,) = result.jobs
    assert (job.num_attempts, job.error) == (3, None)
    assert job.dispatched_at == pytest.approx(0.02)


def test_gates_refuse_and_are_told_of_every_end() -> None:
    policies = Policies(
        fifo(enable_batching=False).scheduler, gates=lambda: capacity_gate(AdmissionConfig(max_queue_size=1))
    )
    result = run_of([ask(n, output=100) for n in range(4)], ONE_AT_A_TIME, policies=policies)
    assert reasons(result) == {0: None, 1: None, 2: "queue_full", 3: "queue_full"}
    refused = [record for record in result.records if record.code == "queue_full"]
    assert all(record.retry_after_s for record in refused)


class Counting:
    """An admission policy that lets `limit` requests in at a time. Implements `AdmissionPolicy`."""

    name = "counting"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_inside = 0
        self.usages: list[Usage | None] = []

    def reserve(self, request: RuntimeRequest, load: Load, now: float) -> Counting:
        if self.num_inside >= self.limit:
            raise RateLimited("full", retry_after_s=2.0)
        self.num_inside += 1
        return self

    def rollback(self) -> None:
        self.num_inside -= 1

    def settle(self, usage: Usage | None) -> None:
        self.num_inside -= 1
        self.usages.append(usage)


def test_reservations_are_settled_with_what_was_used_whatever_the_end() -> None:
    counting = Counting(2)
    gates = Gates(AdmissionController((counting,), ()))
    policies = Policies(fifo(enable_batching=False).scheduler, gates=lambda: gates)
    asks = [
        ask(0, prompt=7, output=10),
        ask(1, 0.01, output=10, patience_s=0.05),
        ask(2, 0.02, output=10),
        ask(3, 0.5, prompt=9, output=1),
    ]
    result = run_of(asks, ONE_AT_A_TIME, policies=policies)
    assert reasons(result) == {0: None, 1: "client_gone", 2: "rate_limit_exceeded", 3: None}
    assert counting.num_inside == 0
    assert counting.usages == [None, Usage(7, 10), Usage(9, 1)]


def test_the_horizon_cuts_off() -> None:
    result = run_of([ask(0, 0.0, output=1), ask(1, 1.0, output=900)], MOCK, horizon_s=2.0)
    assert reasons(result) == {0: None, 1: "horizon"}
    assert ends(result)[1] == 2.0
    assert [record.error for record in result.records] == [None, "drain_timeout"]


def test_what_is_passed_on_waits_in_the_engine_in_the_order_it_came() -> None:
    model = ContinuousModel(2, line(0.01, 0.0), 0.01, 10)
    asks = [ask(number, prompt=10, output=10) for number in range(7)]
    ours = run_of(asks, model)
    engines = run_of(asks, replicas=(ReplicaConfig(model, in_flight=100),))
    assert ends(engines) == pytest.approx(ends(ours))
    assert {job.dispatched_at for job in engines.jobs} == {0.0}
    assert engines.utilisation.slots == pytest.approx(ours.utilisation.slots)


def test_who_leaves_the_engines_queue_never_ran() -> None:
    model = ContinuousModel(1, line(0.01, 0.0), 0.01, 10)
    asks = [ask(0, output=100), ask(1, output=100, patience_s=0.5), ask(2, output=1)]
    result = run_of(asks, replicas=(ReplicaConfig(model, in_flight=100),))
    assert reasons(result)[1] == "client_gone"
    assert result.jobs[1].num_generated == 0
    assert ends(result)[2] == pytest.approx((ends(result)[0] or 0.0) + 0.1)


# ---- the result


def test_records_are_those_of_the_harness() -> None:
    asks = [ask(n, n * 0.01, output=5, traffic="chat", tenant="a", priority=2) for n in range(40)]
    result = run_of(asks, TWO_SLOTS, keep_itls=True)
    for record, job in zip(result.records, result.jobs, strict=True):
        assert decode(encode(record)).itls_s == pytest.approx(record.itls_s, abs=1e-6)
        assert len(record.itls_s) == 4
        assert sum(record.itls_s) == pytest.approx((job.last_token_at or 0) - (job.first_token_at or 0))
        assert metrics.tpot_s(record) == pytest.approx(fmean(record.itls_s))
        assert (record.tenant, record.priority, record.traffic) == ("a", 2, "chat")
    assert len({round(gap, 6) for record in result.records for gap in record.itls_s}) > 1


def test_without_a_log_of_steps_the_mean_between_tokens_is_still_right() -> None:
    asks = [ask(n, n * 0.01, output=5) for n in range(40)]
    with_log, without = run_of(asks, TWO_SLOTS, keep_itls=True), run_of(asks, TWO_SLOTS)
    for one, other in zip(with_log.records, without.records, strict=True):
        assert metrics.tpot_s(one) == pytest.approx(metrics.tpot_s(other))


def test_the_summary_tells_classes_apart_and_counts_failures() -> None:
    limits = TimeLimits(queue_s=0.2, request_s=None)
    asks = [ask(n, 0.0, output=10, traffic="batch") for n in range(5)]
    asks += [ask(10 + n, 0.01, output=1, traffic="chat", limits=limits) for n in range(5)]
    result = run_of(asks, ONE_AT_A_TIME, policies=fifo(enable_batching=False))
    summary = result.summary({"chat": Slo(ttft_s=10.0), "batch": Slo(e2e_s=0.35)})
    classes: Mapping[str, Mapping[str, object]] = summary["classes"]
    assert classes["chat"]["failed"] == 5
    assert classes["chat"]["errors"] == {"queue_timeout": 5}
    assert classes["batch"]["goodput_share"] == pytest.approx(3 / 5)
    assert summary["goodput_share"] == pytest.approx(3 / 10)
    assert classes["batch"]["makespan_s"] == pytest.approx(0.5)
    assert result.makespan_s() == pytest.approx(0.5)
    assert result.makespan_s("none") == 0.0


def test_unmeasured_requests_are_in_no_figure() -> None:
    asks = [Ask(n, n * 1.0, 1, 1, 1, measured=n >= 2) for n in range(5)]
    result = run_of(asks, MOCK)
    assert result.summary()["num_prompts"] == 3
    assert len(result.queue_waits_s()) == 3


def test_a_feed_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="before the one ahead"):
        run_of([ask(0, 1.0), ask(1, 0.5)], MOCK)


def test_time_never_goes_back() -> None:
    source = random.Random(2)
    asks = sorted((ask(n, source.random() * 3, output=source.randint(1, 9)) for n in range(300)),
                  key=lambda each: each.at_s)  # fmt: skip
    model = ContinuousModel(3, line(0.007, 0.0011), 0.0013, 7)
    result = run_of(asks, model, model)
    dispatched = sorted((job.dispatched_at or 0.0, job.queued_at or 0.0) for job in result.jobs)
    assert all(earlier[1] <= later[1] + 1e-9 for earlier, later in pairwise(dispatched)), "FIFO"
    for job in result.jobs:
        instants = [job.queued_at, job.dispatched_at, job.first_token_at, job.last_token_at, job.finished_at]
        known = [at for at in instants if at is not None]
        assert known == sorted(known)
        assert len(known) == 5
