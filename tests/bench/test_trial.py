"""What a study's requests become on their way to a real server, and what comes back of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_runtime.bench.config import Target
from llm_runtime.bench.given import given_plan
from llm_runtime.bench.sim.job import Ask
from llm_runtime.bench.sim.study import ENGINE, FIFO, Arm, e2e_s, ttft_s
from llm_runtime.bench.trial import Bench, command, job_of, scheduling_settings, sessions
from llm_runtime.core.request import TimeLimits
from llm_runtime.scheduling.config import SchedulingConfig
from tests.bench.builders import failed, whole

ASK = Ask(7, 1.5, 20, 4, 9, "chat", "alice", 2)


def test_only_what_differs_from_the_defaults_is_set() -> None:
    assert scheduling_settings(SchedulingConfig()) == {}
    config = SchedulingConfig(policy="fair", fair_reserve_slots=2)
    assert scheduling_settings(config) == {"scheduling.policy": "fair", "scheduling.fair_reserve_slots": 2}


def test_an_arm_is_served_by_the_runtime_with_its_policy() -> None:
    line, ready = command(Arm(SchedulingConfig(policy="shortest", shortest_patience=3.0)), Bench(num_slots=3))
    assert ready == "/health/ready"
    assert {"scheduling.policy=shortest", "scheduling.shortest_patience=3.0"} <= set(line.split())
    assert "native_backend_concurrency=3" in line
    assert "scheduling." not in command(FIFO, Bench())[0]


def test_requests_keep_class_tenant_priority_and_instant_and_are_numbered_anew() -> None:
    (session,) = sessions([ASK])
    assert (session.number, session.due_s) == (0, 1.5)
    assert (session.turns[0].input_tokens, session.turns[0].output_tokens) == (20, 4)
    traffic = session.traffic
    assert (traffic.name, traffic.tenant, traffic.priority) == ("chat", "alice", 2)
    assert given_plan(Target("http://x"), [session]).traffic == (traffic,)


@pytest.mark.parametrize(("receipt", "dispatched_at"), [("queue;dur=250, prefill;dur=3", 1.75), (None, 2.0)])
def test_instants_of_a_record_are_those_of_the_job(receipt: str | None, dispatched_at: float) -> None:
    record = whole(
        scheduled_at=1.5, first_token_at=2.0, last_token_at=2.9, finished_at=3.0, prompt_tokens=33,
        completion_tokens=4, server_timing=receipt,
    )  # fmt: skip
    job = job_of(ASK, record)
    assert (job.queued_at, job.dispatched_at, job.finished_at) == (1.5, dispatched_at, 3.0)
    assert (ttft_s(job), e2e_s(job)) == (0.5, 1.5)
    assert (job.ask.prompt_tokens, job.num_generated) == (33, 4)


def test_tokens_that_are_no_whole_character_are_seen_at_the_end() -> None:
    record = whole(
        scheduled_at=1.5, first_token_at=None, last_token_at=None, finished_at=3.0, completion_tokens=2
    )
    job = job_of(ASK, record)
    assert (ttft_s(job), job.num_generated) == (1.5, 2)
    assert ttft_s(job_of(ASK, replace(record, completion_tokens=0))) == float("inf")


def test_a_failure_stays_one() -> None:
    job = job_of(ASK, failed())
    assert e2e_s(job) == float("inf")
    assert job.num_generated == 0
    assert job_of(ASK, failed(num_token_events=3)).num_generated == 3


def test_a_limit_of_the_request_is_the_patience_of_its_client() -> None:
    hurried = replace(ASK, limits=TimeLimits(request_s=1.25))
    assert [session.traffic.patience_s for session in sessions([hurried, ASK])] == [1.25, None]


def test_arms_choose_whose_requests_come() -> None:
    assert ENGINE.scheduling is None
    assert ENGINE.asked([ASK]) == [ASK]
    assert Arm(only=("other",)).asked([ASK]) == []
