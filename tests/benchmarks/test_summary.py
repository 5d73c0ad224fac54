from __future__ import annotations

import pytest

from benchmarks.overhead import claims, report
from benchmarks.overhead.participants import BASELINE, COMPILED, DIRECT, OURS, ROUTER, SMG, known
from benchmarks.overhead.plan import BY_NAME, FULL
from benchmarks.overhead.report import Run
from benchmarks.overhead.rounds import order
from benchmarks.overhead.summary import Summary, figures, summarise
from benchmarks.overhead.turn import Turn
from tests.benchmarks.builders import costs, poisson, result, turn


def test_costs_are_per_token_and_per_request() -> None:
    found = figures(costs(OURS, 0, token_us=20.0, plain_ms=0.1), None)
    assert found["token_us"] == pytest.approx(20.0)
    assert found["plain_ms"] == pytest.approx(0.1)


def test_a_phase_with_failures_has_no_figure() -> None:
    cheap = result(num_tokens=1000, cpu_s=0.001, failures={"status 503": 1})
    failed = turn(OURS, 0, {"streams": cheap})
    assert figures(failed, None) == {}
    summary = summarise([failed], 1)
    assert any("503" in problem for problem in summary.problems)


def test_too_few_tokens_say_nothing() -> None:
    assert figures(turn(OURS, 0, {"streams": result(num_tokens=29, cpu_s=1.0)}), None) == {}


def test_added_time_is_beyond_what_the_stub_itself_needs_in_the_same_round() -> None:
    turns = [
        turn(DIRECT, 0, {"poisson": poisson(0.020, 0.0001)}),
        turn(OURS, 0, {"poisson": poisson(0.022, 0.0004)}),
        turn(OURS, 1, {"poisson": poisson(0.532, 0.5)}),
        turn(DIRECT, 1, {"poisson": poisson(0.530, 0.4)}),
        turn(OURS, 2, {"poisson": poisson(9.0, 9.0)}),  # nothing to compare with
    ]
    series = summarise(turns, 3).series[OURS]
    assert series["ttft_added_p50_ms"] == [pytest.approx(2.0), pytest.approx(2.0), None]
    assert series["delay_added_p99_ms"] == [pytest.approx(0.3), pytest.approx(100.0), None]


def test_comparisons_pair_rounds_however_the_turns_were_ordered() -> None:
    turns = [
        costs(ROUTER, 0, 10.0, 1.0),
        costs(OURS, 0, 9.0, 2.0),
        costs(OURS, 1, 90.0, 20.0),
        costs(ROUTER, 1, 100.0, 10.0),
    ]
    compared = summarise(turns, 2).comparisons[ROUTER]
    assert list(compared["token_us"].values) == pytest.approx([0.9, 0.9])
    assert compared["plain_ms"].median == pytest.approx(2.0)


def test_requests_that_never_reached_the_upstream_are_told() -> None:
    caching = costs(OURS, 0, 1.0, 1.0, upstream_requests=10, client_requests=500)
    assert any("500 requests sent, 10 reached" in problem for problem in summarise([caching], 1).problems)
    honest = costs(OURS, 0, 1.0, 1.0, upstream_requests=500, client_requests=500)
    assert not summarise([honest], 1).problems


def test_a_run_beside_busy_neighbours_is_disturbed() -> None:
    busy = turn(OURS, 0, {"plain": result(foreign_cpu_share=0.6)})
    quiet = turn(OURS, 0, {"plain": result(foreign_cpu_share=0.02)})
    assert summarise([busy], 1).disturbed
    assert not summarise([quiet], 1).disturbed


def compared(token_us: float, plain_ms: float = 0.1, rounds: int = 7) -> Summary:
    turns = [costs(OURS, number, token_us + 0.01 * number, plain_ms) for number in range(rounds)]
    turns += [costs(BASELINE, number, 300.0, 3.0) for number in range(rounds)]
    return summarise(turns, rounds)


def test_bars_are_met_missed_or_not_measured() -> None:
    verdicts = {verdict.claim.text: verdict for verdict in claims.judge(compared(20.0))}
    token = next(v for text, v in verdicts.items() if "token" in text and BASELINE in text)
    assert (token.met, token.sure) == (True, True)
    router = next(v for text, v in verdicts.items() if ROUTER in text)
    assert router.met is None
    assert claims.failing(list(verdicts.values()), "ci") == []
    assert router in claims.failing(list(verdicts.values()), "claims")


def test_a_missed_bar_fails_the_check_and_so_does_a_missing_peer() -> None:
    missed = claims.failing(claims.judge(compared(101.0)), "ci")
    assert [verdict.claim.pick(compared(101.0)) is not None for verdict in missed] == [True]
    alone = summarise([costs(OURS, 0, 1.0, 1.0)], 1)
    assert len(claims.failing(claims.judge(alone), "ci")) == 2


def test_a_build_fails_when_the_whole_interval_is_above_and_not_by_the_weather() -> None:
    """A third of 300 us is 100: the median is above it both times, the interval once."""
    turns = [costs(OURS, n, us, 0.1) for n, us in enumerate((97.0, 98.0, 99.0, 101.0, 102.0, 103.0, 104.0))]
    turns += [costs(BASELINE, number, 300.0, 3.0) for number in range(7)]
    weather = claims.judge(summarise(turns, 7))
    (token,) = [v for v in weather if v.claim.group == "ci" and "token" in v.claim.text]
    assert (token.met, token.surely_missed) == (False, False)
    assert token not in claims.failing(weather, "ci")
    missed = claims.failing(claims.judge(compared(101.0)), "ci")
    assert [verdict.surely_missed for verdict in missed] == [True]


def test_three_rounds_can_meet_a_bar_but_not_surely() -> None:
    verdict = claims.judge(compared(20.0, rounds=3))[0]
    assert verdict.met
    assert not verdict.sure


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_everyone_has_one_turn_per_round_and_the_first_place_goes_round(count: int) -> None:
    rounds = [order(count, number) for number in range(2 * count)]
    assert all(sorted(one) == list(range(count)) for one in rounds)
    assert {one[0] for one in rounds} == set(range(count))


def reported(turns: list[Turn], summary: Summary) -> Run:
    participants = [known()[name] for name in (OURS, BASELINE)]
    environment = {"commit": "0123456789abcdef", "dirty": True, "cpu": "a processor", "python": "3.11"}
    return Run("python benchmarks/gateway_overhead.py", 1.0, 2.0, environment, FULL, participants,
               {ROUTER: "not installed"}, turns, summary, claims.judge(summary),
               {OURS: {"python": "3.11.7", "python_optimised": False, "compiled": False}})  # fmt: skip


def test_the_report_says_what_was_measured_and_what_was_not() -> None:
    turns = [costs(name, number, 20.0, 0.1) for number in range(7) for name in (OURS, BASELINE)]
    run = reported(turns, summarise(turns, 7))
    text = report.as_markdown(run)
    assert "0123456789 with changes" in text
    assert f"{OURS} ran on Python 3.11.7, not optimised" in text
    assert f"| {OURS}" in text
    assert "not measured: vllm-router: not installed" in text
    assert "MISSED" in text  # the same cost as the baseline's
    members = report.as_json(run)
    assert members["medians"][OURS]["token_us"]["median"] == pytest.approx(20.0)
    assert len(members["turns"]) == 14
    assert members["not_measured"] == {ROUTER: "not installed"}


def test_the_compiled_build_has_bars_of_its_own() -> None:
    turns = [costs(OURS, number, 40.0, 0.4) for number in range(7)]
    turns += [costs(COMPILED, number, 20.0, 0.1) for number in range(7)]
    turns += [costs(name, number, 25.0, 0.2) for number in range(7) for name in (ROUTER, SMG)]
    verdicts = claims.judge(summarise(turns, 7))
    found = {v.claim.group: v.met for v in verdicts if v.claim.text.startswith(BY_NAME["token_us"].title)}
    assert found == {"ci": None, "claims": False, "compiled": True}
    missed = {verdict.claim.group for verdict in claims.failing(verdicts, "compiled")}
    assert missed == {"ci", "compiled"}  # no baseline, and no steps
    assert "claims" in {verdict.claim.group for verdict in claims.failing(verdicts, "claims")}
