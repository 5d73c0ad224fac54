"""The instrument as a whole, with sizes that say nothing, against what is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gateway_overhead
from benchmarks.overhead import rounds, together
from benchmarks.overhead.participants import BARE, BASELINE, DIRECT, OURS, Participant, known
from benchmarks.overhead.plan import FULL, METRICS, QUICK, Plan
from benchmarks.overhead.servers import Command
from benchmarks.overhead.turn import Turn

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc and core masks are Linux's")

TINY = Plan(rounds=1, streams_s=0.5, steps_s=0.3, plain_s=1.5, paced_s=0.5, poisson_s=0.5, warmup_s=0.1,
            streams=4, num_tokens=8, gap_s=0.01, concurrency=2, rate_per_s=20.0)  # fmt: skip
with_baseline = pytest.mark.skipif(
    known()[BASELINE].missing is not None, reason="needs `make bench-peers PEERS=baseline`"
)


@dataclass(frozen=True)
class Ran:
    status: int
    members: dict[str, Any]
    text: str


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of ours, of the stub alone, of a bare relay, of the baseline proxy where there is one."""
    out = tmp_path_factory.mktemp("overhead") / "out.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway_overhead, "QUICK", TINY)
        status = gateway_overhead.main(
            ["--quick", "--check", "claims", "--participants", f"{OURS},{BASELINE},{BARE}", "--out", str(out)]
        )
    return Ran(status, json.loads(out.read_bytes()), out.with_suffix(".md").read_text(encoding="utf-8"))


def test_every_turn_went_well(ran: Ran) -> None:
    assert ran.members["problems"] == []
    assert {OURS, DIRECT} <= {turn["participant"] for turn in ran.members["turns"]}


@pytest.mark.parametrize("name", [OURS, BARE, pytest.param(BASELINE, marks=with_baseline)])
def test_every_figure_is_there_and_of_a_credible_size(ran: Ran, name: str) -> None:
    medians = {metric: found["median"] for metric, found in ran.members["medians"][name].items()}
    beyond_it = set() if "paced" in known()[name].phases else {"paced_ms"}
    assert set(medians) == {metric.name for metric in METRICS} - beyond_it
    assert 1 < medians["token_us"] < 5000
    assert 0.01 < medians["plain_ms"] < 50
    assert 10 < medians["peak_mb"] < 1000
    assert f"| {name}" in ran.text


def test_a_bar_that_was_not_measured_fails_the_check(ran: Ran) -> None:
    assert ran.status == 1
    assert not all(claim["met"] for claim in ran.members["claims"])


def test_results_describe_themselves_and_name_no_place(ran: Ran) -> None:
    assert ran.members["command"].startswith("python benchmarks/gateway_overhead.py --quick")
    assert ran.members["plan"]["num_tokens"] == 8
    assert str(gateway_overhead.ROOT) not in json.dumps({**ran.members, "command": ""})


def _broken(_: object) -> Command:
    return Command([sys.executable, "-c", "print('no such flag'); raise SystemExit(3)"])


@pytest.mark.parametrize("run", [rounds.run_rounds, together.run_together])
def test_who_cannot_start_is_told_and_not_tried_again(
    run: Callable[[Plan, Sequence[Participant], Callable[[Turn], None]], list[Turn]],
) -> None:
    turns: list[Turn] = []
    plan = Plan(rounds=3, pinned=False)
    run(plan, [Participant("broken", "ends at once", _broken)], turns.append)
    (turn,) = turns
    assert turn.problem is not None
    assert "status 3" in turn.problem
    assert "no such flag" in turn.problem


def test_together_all_are_measured_at_the_same_time_with_equal_shares(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway_overhead, "QUICK", replace(TINY, rounds=2))
        status = gateway_overhead.main(
            ["--quick", "--together", "--participants", f"{OURS},{BARE}", "--out", str(out)]
        )
    ran = json.loads(out.read_bytes())
    assert (status, ran["problems"]) == (0, [])
    assert [turn["participant"] for turn in ran["turns"]] == [OURS, BARE, BARE, OURS]
    for turn in ran["turns"]:
        assert set(turn["results"]) == set(together.TOGETHER)
        # Four streams, two for each; a connection is a stream's.
        assert turn["results"]["streams"]["num_connects"] == 2
    assert {"token_us", "step_token_us", "paced_ms"} <= set(ran["ours_against"][BARE])


def test_together_needs_somebody() -> None:
    with pytest.raises(SystemExit, match="nobody to measure together"):
        gateway_overhead.main(["--quick", "--together", "--participants", DIRECT])


def test_delays_are_not_measured_together() -> None:
    options = gateway_overhead._options(["--together", "--phases", "streams,poisson"])
    with pytest.raises(SystemExit, match="poisson is measured in turns only"):
        gateway_overhead.plan_of(options)
    assert gateway_overhead.plan_of(gateway_overhead._options(["--together"])).phases == together.TOGETHER


def test_an_unknown_participant_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="no participant nobody"):
        gateway_overhead.choose(["nobody"], quick=False)


def test_phases_can_be_chosen() -> None:
    options = gateway_overhead._options(["--quick", "--phases", "plain,poisson"])
    plan = gateway_overhead.plan_of(options)
    assert plan.phases == ("plain", "poisson")
    assert (plan.plain_s, plan.poisson_s) == (QUICK.plain_s, FULL.poisson_s)
    with pytest.raises(SystemExit, match="no phase steam"):
        gateway_overhead.plan_of(gateway_overhead._options(["--phases", "steam"]))
