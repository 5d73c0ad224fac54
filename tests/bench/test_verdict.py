"""When figures may not be used, and what a reader must be told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_runtime.bench import metrics
from llm_runtime.bench.config import Plan, Target
from llm_runtime.bench.ledger import Window
from llm_runtime.bench.run import RunResult
from llm_runtime.bench.verdict import State, Verdict, client_health, judge
from tests.bench.builders import answered, failed

GOOD = RunResult(
    plan=Plan(Target("http://x")),
    model="m",
    salt="s",
    records=[answered(float(number), 0.5, (0.1,)) for number in range(200)],
    window=Window(),
    load_end_s=199.0,
    end_s=200.0,
    cpu_s=2.0,
    lags_s=[0.0001] * 200,
    started_at=0.0,
    interrupted=False,
)


def judged(**changes: Any) -> Verdict:
    result = replace(GOOD, **changes)
    tokens = metrics.token_facts(metrics.measured(result.records))
    return judge(result, client_health(result), tokens)


def late(number: int, lag_s: float) -> list[Any]:
    records = list(GOOD.records)
    for position in range(number):
        due = records[position].scheduled_at
        records[position] = replace(records[position], released_at=due + lag_s)
    return records


def test_a_good_run() -> None:
    assert judged() == Verdict(State.OK)


def test_health_is_of_the_whole_load() -> None:
    health = client_health(GOOD)
    assert (health.schedule_lag_p99_s, health.loop_lag_p99_s) == (0.0, 0.0001)
    assert health.cpu_share == 0.01
    assert health.cpu_per_output_token_s == 2.0 / 400


@pytest.mark.parametrize(
    ("number", "lag_s", "state"),
    [(2, 1.0, State.OK), (3, 0.0049, State.OK), (3, 0.0051, State.VOID)],
)
def test_more_than_one_in_a_hundred_late_by_five_milliseconds_voids(
    number: int, lag_s: float, state: State
) -> None:
    assert judged(records=late(number, lag_s)).state is state


def test_a_late_loop_is_told() -> None:
    verdict = judged(lags_s=[0.006] * 100)
    assert verdict.state is State.OK
    assert "6.0 ms" in verdict.warnings[0]


def test_no_answer_at_all_is_a_failure() -> None:
    assert judged(records=[failed(), failed()]).state is State.FAILED
    assert judged(records=[]).state is State.FAILED
    assert "late" in judged(records=[failed(), failed()]).reasons[1]


def test_unknown_tokens_outrank_everything() -> None:
    verdict = judged(records=late(50, 1.0), num_without_usage=1, interrupted=True)
    assert verdict.state is State.INVALID
    assert len(verdict.reasons) == 3
    assert verdict.interrupted


def test_an_interrupted_run_says_so() -> None:
    assert judged(interrupted=True).state is State.INTERRUPTED


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cpu_s": 190.0}, "95% of its core"),
        ({"num_retries": 3}, "3 requests met a closed connection"),
        ({"num_abandoned_turns": 2}, "2 follow-up requests"),
        ({"records": [answered(0.0, 0.5, (0.1,), completion_tokens=9)]}, "between reads"),
        ({"records": [answered(0.0, 0.5, (0.1,), completion_tokens=1)]}, "more pieces of text"),
        ({"records": [answered(0.0, 0.5, (0.1,), tokens_estimated=True)]}, "estimates"),
    ],
)
def test_doubts_are_told(changes: dict[str, Any], says: str) -> None:
    warnings = judged(**changes).warnings
    assert len(warnings) == 1
    assert says in warnings[0]
