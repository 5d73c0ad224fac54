"""The framework of scenarios, and the arithmetic of the one about honesty."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from llm_runtime.bench import facts
from llm_runtime.bench import scenario as framework
from llm_runtime.bench.present import checked_lines
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.scenarios import honesty
from llm_runtime.core.errors import ConfigError
from tests.bench.builders import answered


async def measured(quick: bool) -> Result:
    return Result({"speed": 2.0, "share": None if quick else 0.5, "beside": 7.0}, {"quick": quick})


EXAMPLE = Scenario(
    name="example",
    question="Is it?",
    workload={"rate": 3},
    bars=(Bar("speed", ">=", 2.0), Bar("share", "<=", 0.4, quick=False)),
    run=measured,
)


async def test_bars_that_need_a_long_run_hold_only_for_one(tmp_path: Path) -> None:
    quick = await framework.measure(EXAMPLE, quick=True, folder=tmp_path)
    assert [each.met for each in framework.check(EXAMPLE, quick, quick=True)] == [True]
    whole = await framework.measure(EXAMPLE, quick=False, folder=tmp_path)
    assert [each.met for each in framework.check(EXAMPLE, whole, quick=False)] == [True, False]
    assert sorted(os.listdir(tmp_path)) == ["example-quick.json", "example.json"]


async def test_a_result_names_its_definition_and_its_bars(tmp_path: Path) -> None:
    await framework.measure(EXAMPLE, quick=True, folder=tmp_path, command="x")
    body = json.loads((tmp_path / "example-quick.json").read_bytes())
    assert body["figures"] == {"speed": 2.0, "share": None, "beside": 7.0}
    assert body["bars"] == [{"figure": "speed", "relation": ">=", "value": 2.0, "met": True}]
    assert body["definition"]["workload"] == {"rate": 3}
    assert re.fullmatch("[0-9a-f]{64}", body["definition"]["sha256"])
    assert {"commit", "differs_from_commit"} <= set(body["definition"])
    assert (body["question"], body["quick"], body["command"]) == ("Is it?", True, "x")


async def test_what_a_run_is_made_of_is_noted_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkout moves on while the run lasts."""
    commits = iter(["a" * 40, "b" * 40])
    state = {"sha256": "0" * 64, "commit": next(commits), "differs_from_commit": False}
    monkeypatch.setattr(framework, "identity", lambda _: dict(state))
    monkeypatch.setattr(facts, "environment", lambda: {"commit": state["commit"]})

    async def moves_on(quick: bool) -> Result:
        state["commit"] = next(commits)
        return await measured(quick)

    await framework.measure(replace(EXAMPLE, run=moves_on), quick=True, folder=tmp_path)
    body = json.loads((tmp_path / "example-quick.json").read_bytes())
    assert body["definition"]["commit"] == body["environment"]["commit"] == "a" * 40


def test_results_written_before_do_not_make_a_checkout_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "src" / "llm_runtime" / "__init__.py"
    result = tmp_path / "benchmarks" / "results" / "old.json"
    for path in (package, result):
        path.parent.mkdir(parents=True)
        path.write_text("one")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for command in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "one")):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    monkeypatch.setattr(facts, "package_file", str(package))
    assert facts.commit().dirty is False
    result.write_text("two")
    assert facts.commit().dirty is False
    package.write_text("two")
    assert facts.commit().dirty is True


@pytest.mark.parametrize(
    ("relation", "figure", "met"),
    [("<=", 1.0, True), ("<=", 1.1, False), (">=", 1.0, True), (">=", 0.9, False), ("<=", None, False)],
)
def test_a_bar_is_met_or_not_and_never_by_what_is_unknown(
    relation: str, figure: float | None, met: bool
) -> None:
    assert replace(Bar("f", "<=", 1.0), relation=relation).met_by(figure) is met  # type: ignore[arg-type]


async def test_figures_with_a_bar_are_printed_last() -> None:
    result = await measured(False)
    lines = list(checked_lines(result, framework.check(EXAMPLE, result, quick=False)))
    assert [line.split()[0] for line in lines] == ["beside", "speed", "share"]
    assert lines[1].endswith("ok")
    assert lines[2].endswith("MISSED")


def test_every_scenario_is_found_by_its_name_and_has_bars() -> None:
    found = framework.all_scenarios()
    assert "honesty" in found
    assert all(
        name == each.name and each.bars and each.question.endswith("?") for name, each in found.items()
    )
    with pytest.raises(ConfigError, match=r"there are: .*honesty"):
        framework.find("nothing")


def test_a_committed_definition_names_its_commit() -> None:
    state = framework.identity(honesty.SCENARIO)
    if state["commit"] is None:
        pytest.skip("not in a repository, or not committed yet")
    assert re.fullmatch("[0-9a-f]{40}", state["commit"])
    assert isinstance(state["differs_from_commit"], bool)


def test_the_truth_under_a_cap_follows_from_the_schedule() -> None:
    """Two places, 1 s each: the third waits for the first, the fourth for the second, and so on."""
    due = [0.0, 0.0, 0.0, 0.5, 5.0]
    assert honesty.queue_waits(due, 1.0, 2) == [0.0, 0.0, 1.0, 0.5, 0.0]
    assert honesty.queue_waits(due, 1.0, None) == [0.0] * 5


def test_errors_are_relative_to_the_truth() -> None:
    gaps = (honesty.SCRIPT.gap_s,) * 10
    true = [answered(float(number), honesty.SCRIPT.first_at_s, gaps) for number in range(5)]
    assert all(abs(error) < 1e-9 for error in honesty.errors(true, None).values())
    late = [answered(float(number), 1.1 * honesty.SCRIPT.first_at_s, gaps) for number in range(5)]
    found = honesty.errors(late, None)
    assert found["mean_ttft"] == pytest.approx(0.1)
    assert found["median_e2e"] == pytest.approx(0.05)
    assert found["mean_itl"] == pytest.approx(0.0)
