"""Scenarios of policies: what is drawn, and that small runs already show what the whole ones are for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from llm_runtime.bench.scenario import Scenario
from llm_runtime.bench.scenarios import (
    adaptive_limit,
    aging,
    deadline,
    fairness,
    mixed_load,
    overload,
    preemption,
    shortest,
)
from llm_runtime.bench.settings_json import plain
from llm_runtime.bench.sim.job import Ask
from llm_runtime.bench.sim.models import EMBEDDED, SERVER_GPU
from llm_runtime.bench.sim.study import Study, stretched
from llm_runtime.core.request import EndpointKind, RuntimeRequest

STUDIES = [
    *deadline.STUDIES.values(),
    deadline.REAL_STUDY,
    *(
        each
        for module in (aging, fairness, mixed_load, preemption, shortest)
        for each in (module.STUDY, module.REAL_STUDY)
    ),
]
SCENARIOS = [
    each
    for module in (aging, deadline, fairness, mixed_load, preemption, shortest)
    for each in (module.SCENARIO, module.ON_ENGINE)
]


@pytest.mark.parametrize("study", STUDIES)
def test_requests_follow_from_the_seed_and_are_in_order(study: Study) -> None:
    asks = study.workload.draw(3, 0.05)
    assert asks == study.workload.draw(3, 0.05)
    assert asks != study.workload.draw(4, 0.05)
    assert [ask.number for ask in asks] == list(range(len(asks)))
    assert all(one.at_s <= other.at_s for one, other in pairwise(asks))
    assert all(0 < ask.output_tokens <= ask.max_tokens for ask in asks)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_a_scenario_fixes_is_json(scenario: Scenario) -> None:
    json.dumps(plain(dict(scenario.workload)))
    json.dumps(plain(dict(scenario.slos)))


@pytest.mark.parametrize("study", STUDIES)
def test_each_is_compared_with_fifo_and_with_the_engines_own_queue(study: Study) -> None:
    assert study.arms["engine"].scheduling is None
    fifo = study.arms["fifo"].scheduling
    assert fifo is not None
    assert fifo.policy == "fifo"


def test_a_unit_is_what_a_saturated_engine_needs_for_a_request() -> None:
    engine = shortest.STUDY.engine(EMBEDDED, 0.2)
    slower = replace(EMBEDDED, step_s=EMBEDDED.step_s, prefill_s_per_token=2 * EMBEDDED.prefill_s_per_token)
    assert engine.unit_s < shortest.STUDY.engine(slower, 0.2).unit_s
    twice = stretched([Ask(0, 3.0, 1, 1, 1)], 0.5)
    assert twice[0].at_s == 1.5


def test_the_study_that_was_published_is_scaled_evenly() -> None:
    asks = mixed_load.draw(0, 1.0)
    assert Counter(ask.traffic for ask in asks) == {"live": 64, "batch": 128}
    lengths = {ask.traffic: (ask.prompt_tokens * 8, ask.output_tokens * 8) for ask in asks}
    assert lengths == {"live": (256, 128), "batch": (1024, 256)}


def test_leaving_the_others_out_changes_nothing_for_the_small_tenant() -> None:
    asks = fairness.draw(1, 0.1)
    alone = fairness.ARMS["alone"].asked(asks)
    assert {ask.tenant for ask in alone} == {"light"}
    assert [ask.at_s for ask in alone] == [ask.at_s for ask in asks if ask.tenant == "light"]


def predicted(asks: Sequence[Ask], from_share: float) -> list[float]:
    predict = shortest.opposite(asks, from_share=from_share)
    return [
        predict(
            RuntimeRequest(
                id=str(ask.number), model="m", kind=EndpointKind.CHAT, body={}, arrived_at=0.0, created=0
            )
        )
        for ask in asks
    ]


def test_the_wrong_predictor_is_wrong_from_where_it_says() -> None:
    asks = [Ask(number, 0.0, 1, tokens, shortest.CAP) for number, tokens in enumerate((10, 900, 10, 900))]
    cap = shortest.CAP
    assert predicted(asks, 0.0) == [cap - 10, cap - 900, cap - 10, cap - 900]
    assert predicted(asks, 0.5) == [10, 900, cap - 10, cap - 900]


def test_policies_do_what_they_are_for_in_small() -> None:
    found = mixed_load.STUDY.simulated(EMBEDDED, mixed_load.STUDY.engine(EMBEDDED, 0.5), 1, 0.5)
    assert found["capped"]["live_good"] > found["fifo"]["live_good"]
    found = aging.STUDY.simulated(EMBEDDED, aging.STUDY.engine(EMBEDDED, 0.2), 1, 0.2)
    assert found["aging"]["high_mean_ttft_s"] < found["fifo"]["high_mean_ttft_s"]
    found = fairness.STUDY.simulated(SERVER_GPU, fairness.STUDY.engine(SERVER_GPU, 0.1), 1, 0.1)
    assert found["fifo"]["flood_by_busy"] > 1.5
    assert found["reserved"]["flood_by_busy"] == pytest.approx(1.0, abs=0.2)
    assert found["reserved"]["light_p99_ttft_s"] < found["fifo"]["light_p99_ttft_s"]


def test_who_declares_a_limit_is_ended_by_it_under_every_policy() -> None:
    study = deadline.STUDIES[1.2]
    engine = study.engine(EMBEDDED, 0.2)
    asks = study.asks(engine, 1, 0.2)
    limits = {ask.traffic: ask.limits.request_s for ask in asks}
    alone_s = engine.alone.ttft_s
    assert limits == {"hurried": pytest.approx(10 * alone_s), "patient": pytest.approx(150 * alone_s)}
    found = study.simulated(EMBEDDED, engine, 1, 0.2)
    assert found["engine"]["missed"] == pytest.approx(found["fifo"]["missed"], abs=0.05)
    assert found["deadline"]["good"] > found["fifo"]["good"]
    assert found["deadline"]["hurried_good"] > 1.2 * found["fifo"]["hurried_good"]


def test_running_work_is_only_ended_where_that_is_asked_for() -> None:
    study = preemption.STUDY
    found = study.simulated(EMBEDDED, study.engine(EMBEDDED, 0.2), 1, 0.5)
    ended = {name for name, figures in found.items() if figures["ended_share"]}
    assert ended == {"batch"}
    assert 0 < found["batch"]["lost_share"] < found["batch"]["ended_share"]
    assert found["batch"]["urgent_mean_ttft_s"] < 0.5 * found["priority"]["urgent_mean_ttft_s"]
    assert found["priority"]["urgent_mean_ttft_s"] < 0.5 * found["fifo"]["urgent_mean_ttft_s"]
    often = preemption.draw(1, 0.5, more_urgent=2.0)
    assert Counter(ask.traffic for ask in often) == {"batch": 160, "urgent": 60}


def test_beside_the_gate_are_the_engines_own_queue_and_fifo() -> None:
    """Their clients leave when their time is up, or declare nothing and wait for ever."""
    found = overload.simulated(5)
    assert found["2"]["gate"] > found["engine"]["goodput"] > found["fifo"]["goodput"]
    assert found["engine"]["goodput"] == pytest.approx(found["no_gate"]["goodput"], rel=0.2)


def test_beside_the_limit_are_the_engines_own_queue_and_fifo() -> None:
    found = adaptive_limit.simulated(5)
    assert set(found) == {*(f"cap_{cap}" for cap in adaptive_limit.CAPS), "adaptive", "fifo", "engine"}
    assert found["adaptive"]["goodput_before"] > found["engine"]["goodput_before"]
    assert "limit_before" not in found["engine"]  # everything is passed on to it
    limits = (adaptive_limit.TTFT_S, adaptive_limit.TPOT_S)
    assert limits == pytest.approx((2.0, 0.08))
