"""Ratios, intervals, and the courage to say "no difference"."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from llm_runtime.bench.compare import Round, as_json, compare, judged, ratios
from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target
from llm_runtime.bench.present import comparison_lines
from llm_runtime.bench.run import Interrupt
from llm_runtime.bench.stub import serve
from tests.bench.loads import QUICK, SMALL, counting


def test_twice_as_fast_in_every_round_is_better_or_worse_as_the_figure_means_it() -> None:
    twice = [2.0, 2.1, 1.9, 2.05, 1.95]
    assert judged("output_throughput", "higher", twice, 0).finding == "better"
    worse = judged("mean_ttft_ms", "lower", twice, 0)
    assert worse.finding == "worse"
    assert worse.mean == pytest.approx(2.0, rel=0.01)
    assert worse.interval is not None
    assert worse.interval[0] < 2.0 < worse.interval[1]


def test_ratios_around_one_are_no_difference() -> None:
    assert judged("mean_ttft_ms", "lower", [0.97, 1.03, 0.99, 1.02, 1.0], 0).finding == "no difference"


def test_four_rounds_are_too_few_however_clear() -> None:
    found = judged("mean_ttft_ms", "lower", [2.0] * 4, 0)
    assert (found.finding, found.interval) == ("too few rounds", None)


def test_equal_targets_are_seldom_told_apart() -> None:
    source = random.Random(1)
    told = sum(
        judged("mean_ttft_ms", "lower", [source.lognormvariate(0.0, 0.1) for _ in range(6)], seed).finding
        != "no difference"
        for seed in range(200)
    )
    assert told / 200 <= 0.10


def summary(value: float | None, state: str = "ok") -> dict[str, Any]:
    figures = (
        "request_throughput",
        "mean_ttft_ms",
        "p95_ttft_ms",
        "settings",
        "server",
        "environment",
        "model_id",
    )
    return {
        **dict.fromkeys(
            ("output_throughput", "request_goodput", "median_ttft_ms", "mean_tpot_ms", "mean_itl_ms",
             "mean_e2el_ms", "median_e2el_ms", "p95_e2el_ms", "p99_e2el_ms", *figures)
        ),
        "mean_ttft_ms": value,
        "verdict": {"state": state, "reasons": [], "warnings": []},
    }  # fmt: skip


def test_void_rounds_are_left_out_and_told() -> None:
    rounds = [Round(seed, "a", summary(1.0), summary(2.0)) for seed in range(5)]
    rounds.append(Round(5, "b", summary(1.0), summary(50.0, "void")))
    (found,) = ratios(rounds, 0)
    assert found.ratios == (2.0,) * 5
    body = as_json(rounds, [found])
    assert (body["num_rounds"], body["num_used"]) == (6, 5)
    first, second, *_ = comparison_lines(body)
    assert first.startswith("6 rounds, 5 fit for use")
    assert second.split() == ["mean_ttft_ms", "2.000", "[2.000,", "2.000]", "worse"]


def test_a_figure_that_is_missing_in_a_round_is_not_compared() -> None:
    rounds = [Round(seed, "a", summary(1.0), summary(None if seed == 2 else 2.0)) for seed in range(5)]
    assert ratios(rounds, 0) == []


async def test_rounds_alternate_and_share_lengths_and_arrivals_but_no_words() -> None:
    seen: dict[str, list[Any]] = {"a": [], "b": []}
    async with serve(QUICK, seen["a"].append) as one, serve(QUICK, seen["b"].append) as two:
        plan = Plan(
            Target(f"http://127.0.0.1:{one.port}"),
            ClosedLoop(1),
            (SMALL,),
            Limits(requests=3, warmup_requests=0),
        )
        other = replace(plan, target=replace(plan.target, url=f"http://127.0.0.1:{two.port}"))
        rounds = await compare(plan, other, 2)
    assert [each.first for each in rounds] == ["a", "b"]
    assert [each.seed for each in rounds] == [0, 1]
    a, b = seen["a"], seen["b"]
    assert a[2].arrived_at < b[0].arrived_at
    assert b[5].arrived_at < a[3].arrived_at
    assert [r.body["max_tokens"] for r in a] == [r.body["max_tokens"] for r in b]
    words = [r.body["messages"][0]["content"] for r in a + b]
    assert len(set(words)) == 12


async def test_an_interruption_keeps_whole_rounds() -> None:
    interrupt = Interrupt()
    async with serve(QUICK, counting(8, interrupt.request)) as stub:
        plan = Plan(
            Target(f"http://127.0.0.1:{stub.port}"),
            ClosedLoop(1),
            (SMALL,),
            Limits(requests=3, warmup_requests=0),
        )
        rounds = await compare(plan, plan, 50, interrupt=interrupt)
    assert len(rounds) == 1
