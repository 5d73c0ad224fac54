"""Calibration: a model simulated, measured back and judged must come out as it went in."""

from __future__ import annotations

import random

import orjson
import pytest

from llm_runtime.bench.config import ClosedLoop, Limits, OpenLoop, Plan, Target, TrafficClass
from llm_runtime.bench.lengths import Uniform
from llm_runtime.bench.records import RequestRecord
from llm_runtime.bench.sim.calibrate import (
    Calibration,
    Effort,
    Measured,
    as_json,
    compared,
    computed_tokens,
    fitted,
    heldout_plans,
    model_of,
    simulated_figures,
    step_s,
)
from llm_runtime.bench.sim.config import ContinuousModel, ReplicaConfig, SimConfig
from llm_runtime.bench.sim.curve import through
from llm_runtime.bench.sim.feed import PlanFeed
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.bench.workload import SyntheticSessions
from llm_runtime.core.errors import BackendError
from tests.bench.builders import answered, failed, whole
from tests.bench.sim.builders import ask, fifo, run_of

MODEL = ContinuousModel(4, through([(0, 0), (1, 0.01), (4, 0.025)]), 0.004, 16)
TRAFFIC = (TrafficClass(input_tokens=Uniform(8, 96), output_tokens=Uniform(4, 40)),)


def records_of(plan: Plan, network_s: float) -> list[RequestRecord]:
    config = SimConfig((ReplicaConfig(MODEL),), network_s=network_s, keep_itls=True)
    return simulate(config, PlanFeed(plan), fifo()).records


@pytest.mark.parametrize("load", [ClosedLoop(3), ClosedLoop(8), OpenLoop(4.0)])
def test_the_right_model_has_no_error_and_a_wrong_one_has(load: ClosedLoop | OpenLoop) -> None:
    plan = Plan(Target("http://x"), load, TRAFFIC, Limits(requests=60), seed=3)
    records = records_of(plan, 0.002)
    measured = compared(records)
    source = SyntheticSessions(plan.traffic, plan.seed)
    assert simulated_figures(plan, source, records, Measured(MODEL, 0.004, {})) == pytest.approx(
        measured, rel=1e-6
    )
    slower = ContinuousModel(4, through([(0, 0), (1, 0.02), (4, 0.05)]), 0.004, 16)
    wrong = simulated_figures(plan, source, records, Measured(slower, 0.004, {}))
    assert wrong["mean_tpot_ms"] > 1.3 * measured["mean_tpot_ms"]


def test_the_time_of_a_step_is_measured_while_all_decode() -> None:
    asks = [ask(number, prompt=20, output=30) for number in range(4)]
    assert step_s(run_of(asks, MODEL, keep_itls=True).records) == pytest.approx(0.025)
    apart = [answered(0.0, 1.0, (0.1,)), answered(5.0, 1.0, (0.1,))]
    with pytest.raises(ValueError, match="never decoded together"):
        step_s(apart)


def test_the_prefill_rate_is_a_slope_that_outliers_do_not_bend() -> None:
    source = random.Random(1)
    points = [(n, 0.05 + 0.004 * n * source.uniform(0.99, 1.01)) for n in range(10, 300, 20)]
    points[3] = (points[3][0], 9.0)
    slope, intercept = fitted(points)
    assert slope == pytest.approx(0.004, rel=0.03)
    assert intercept == pytest.approx(0.05, abs=0.03)
    assert fitted([(10, 1.0), (20, 3.0)]) == pytest.approx((0.2, 0.0))
    with pytest.raises(ValueError, match="two different"):
        fitted([(10, 1.0), (10, 2.0)])


def test_what_the_cache_held_was_not_computed() -> None:
    assert computed_tokens(whole(prompt_tokens=30, cached_tokens=12)) == 18
    assert computed_tokens(whole(prompt_tokens=30, cached_tokens=30)) == 1
    assert computed_tokens(whole(prompt_tokens=30, cached_tokens=None)) == 30


def test_failures_are_not_compared() -> None:
    figures = compared([answered(0.0, 1.0, (0.5, 0.5), completion_tokens=3), failed(number=1)])
    assert figures["mean_ttft_ms"] == pytest.approx(1000)
    assert figures["mean_tpot_ms"] == pytest.approx(500)
    assert "mean_tpot_ms" not in compared([answered(0.0, 1.0)])
    with pytest.raises(BackendError, match="no request"):
        compared([failed()])


def test_heldout_runs_are_not_those_that_were_measured() -> None:
    effort = Effort(heldout_requests=7)
    plans = heldout_plans(Target("http://x"), MODEL, effort)
    concurrencies = {p.load.concurrency for p in plans.values() if isinstance(p.load, ClosedLoop)}
    assert concurrencies == {2, 4, 8}
    assert {plan.limits.requests for plan in plans.values()} == {7}
    assert len({plan.seed for plan in plans.values()}) == len(plans)
    (rate,) = [plan.load.rate for plan in plans.values() if isinstance(plan.load, OpenLoop)]
    busy = rate * (52 * 0.004 + 22 * 0.025 / 4)
    assert busy == pytest.approx(0.6)


def test_a_model_survives_its_file() -> None:
    calibration = Calibration(MODEL, 0.01, {"open": {"mean_ttft_ms": 0.1}}, {"prefill": [(1, 2.0)]})
    body = orjson.loads(orjson.dumps(as_json(calibration)))
    assert model_of(body) == MODEL
    with pytest.raises(KeyError):
        model_of({})
