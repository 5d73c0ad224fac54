"""Fairness, unloaded values and figures over seeds."""

from __future__ import annotations

import math
import random

import pytest

from llm_runtime.bench.config import Slo
from llm_runtime.bench.sim.config import ContinuousModel, StaticModel
from llm_runtime.bench.sim.curve import constant, line
from llm_runtime.bench.sim.fairness import (
    backlogged,
    by_tenant,
    common,
    jain,
    length_s,
    service,
    starved_share,
)
from llm_runtime.bench.sim.job import Job
from llm_runtime.bench.sim.seeds import Figures, estimate, estimates, over_seeds, ratios
from llm_runtime.bench.sim.unloaded import Multiples, objectives, unloaded
from tests.bench.sim.builders import job as make_job

FOREVER = [(0.0, math.inf)]


def done(
    queued: float, dispatched: float | None, first: float = 0.0, last: float = 0.0, *, tenant: str = "a"
) -> Job:
    job = make_job(prompt=100, output=10, tenant=tenant)
    job.queued_at, job.dispatched_at, job.finished_at = queued, dispatched, last
    if dispatched is not None:
        job.first_token_at, job.last_token_at, job.num_generated = first, last, 10
    return job


@pytest.mark.parametrize(
    ("values", "expected"), [([1, 1, 1], 1.0), ([3, 0, 0], 1 / 3), ([1, 2], 0.9), ([], None), ([0, 0], None)]
)
def test_jains_index(values: list[float], expected: float | None) -> None:
    assert jain(values) == (expected if expected is None else pytest.approx(expected))


def test_who_never_got_a_token_is_starved() -> None:
    assert starved_share([0.1, 0.5, 0.7, None], 0.5) == 0.5
    assert starved_share([], 1.0) is None


def test_service_is_spread_over_the_time_it_was_given() -> None:
    jobs = [done(0, 1.0, 3.0, 5.0)]
    assert service(jobs, FOREVER) == 100 + 20
    assert service(jobs, [(0.0, 2.0)]) == 50
    assert service(jobs, [(2.0, 4.0)]) == 50 + 10
    assert service(jobs, [(0.0, 2.0), (4.0, 9.0)]) == 50 + 10
    assert service([done(0, None)], FOREVER) == 0


def test_backlog_is_when_somebody_waits() -> None:
    jobs = [done(0, 2.0), done(1.0, 4.0), done(6.0, 6.0), done(7.0, 8.0), done(8.0, 9.0)]
    assert backlogged(jobs) == [(0.0, 4.0), (7.0, 9.0)]
    assert backlogged(jobs, at_least=2) == [(1.0, 2.0)]
    assert backlogged([]) == []
    assert backlogged([done(0, 0.0, 3.0, 5.0)], in_engine=True) == [(0.0, 3.0)]


def test_common_spans() -> None:
    one, other = [(0.0, 4.0), (7.0, 9.0)], [(1.0, 2.0), (3.0, 8.0)]
    assert common([one, other]) == [(1.0, 2.0), (3.0, 4.0), (7.0, 8.0)]
    assert common([]) == []
    assert common([one, []]) == []
    assert length_s(common([one, other])) == 3.0


def test_tenants_are_told_apart() -> None:
    jobs = [done(0, 1.0, tenant="a"), done(0, 1.0, tenant="b"), done(0, 2.0, tenant="a")]
    assert {tenant: len(own) for tenant, own in by_tenant(jobs).items()} == {"a": 2, "b": 1}


def test_unloaded_values_are_the_models() -> None:
    alone = unloaded(ContinuousModel(4, line(0.5, 1.0), 0.25, 4), 8, 5)
    assert (alone.ttft_s, alone.e2e_s, alone.tpot_s) == (2.0, 4.0, 0.5)
    assert unloaded(StaticModel(4, constant(0.25), 0.5), 8, 1).tpot_s == 0
    assert objectives(Multiples(ttft=2.0, e2e=3.0), alone) == Slo(ttft_s=4.0, e2e_s=12.0)
    assert not objectives(Multiples(), alone)


def measure(seed: int) -> dict[str, Figures]:
    source = random.Random(seed)
    base = source.uniform(1, 2)
    return {"base": {"wait": base}, "half": {"wait": base * source.uniform(0.49, 0.51)}}


def test_ratios_are_within_seeds() -> None:
    found = over_seeds(measure, range(30))
    half = ratios(found, "half", "base", "wait")
    assert half.mean == pytest.approx(0.5, rel=0.01)
    assert half.interval is not None
    low, high = half.interval
    assert 0.495 < low < 0.5 < high < 0.505
    waits = estimates(found)["base"]["wait"]
    assert waits.interval is not None
    assert waits.interval[1] - waits.interval[0] > 0.1
    assert waits.low < waits.mean < waits.high
    assert waits.num_seeds == 30


def test_processes_find_the_same() -> None:
    assert over_seeds(measure, range(4), processes=2) == over_seeds(measure, range(4))


def test_few_seeds_have_no_interval_and_none_no_mean() -> None:
    assert estimate([1.0, 2.0]).interval is None
    with pytest.raises(ValueError, match="no values"):
        estimate([])
    with pytest.raises(ValueError, match="above 0"):
        ratios([{"a": {"x": 0.0}, "b": {"x": 1.0}}], "a", "b", "x")
