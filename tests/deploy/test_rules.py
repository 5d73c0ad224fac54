"""Alerts: promtool runs their unit tests; each has one in which it fires and one in which it does not."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.places import MONITORING, ROOT, RULE_TESTS, RULES, alerts, read_yaml, rules
from tests.deploy.promql import selectors

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (apt: prometheus)"
)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@needs_promtool
@pytest.mark.prometheus
@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_only_then(path: Path) -> None:
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.prometheus
def test_promtool_accepts_configuration_and_rules(tmp_path: Path) -> None:
    shutil.copy(MONITORING / "prometheus.yml", tmp_path)
    shutil.copytree(MONITORING / "rules", tmp_path / "rules")
    (tmp_path / "scrape-key").write_text("sk-key")
    done = promtool("check", "config", "--lint-fatal", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.prometheus
def test_an_alert_that_never_fires_does_not_go_unnoticed(tmp_path: Path) -> None:
    shutil.copytree(MONITORING / "tests", tmp_path / "tests")
    shutil.copytree(MONITORING / "rules", tmp_path / "rules")
    path = tmp_path / "rules" / "alerts.yml"
    spoilt = read_yaml(path)
    for group in spoilt["groups"]:
        for rule in group["rules"]:
            rule["expr"] = f"({rule['expr']}) and on () vector(1) == 2"
    path.write_text(yaml.safe_dump(spoilt))
    done = promtool("test", "rules", *sorted((tmp_path / "tests").glob("*.yml")))
    assert done.returncode == 1
    found = set(re.findall(r"alertname: (\w+),", done.stdout + done.stderr))
    assert found == {rule["alert"] for rule in alerts()}


def test_each_alert_is_tested_both_ways() -> None:
    cases = [
        case
        for path in RULE_TESTS
        for test in read_yaml(path)["tests"]
        for case in test.get("alert_rule_test", ())
    ]
    names = {rule["alert"] for rule in alerts()}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names


def test_names_are_unique() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names) > 20


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_each_alert_says_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook"}
    assert notes["description"].endswith(".")
    page, _, anchor = notes["runbook"].partition("#")
    headings = re.findall(r"^### (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor == str(rule["alert"]).lower()
    assert rule["alert"] in headings


def test_the_runbook_has_no_alert_that_does_not_exist() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert set(re.findall(r"^### (.+)$", page, re.MULTILINE)) == {rule["alert"] for rule in alerts()}


def test_recorded_names_say_level_metric_and_operation() -> None:
    for rule in rules():
        if "record" in rule:
            assert re.fullmatch(r"[a-z_]+:[a-z_]+(:[a-z0-9_]+)?", rule["record"])
        assert selectors(rule["expr"]) or rule["expr"].startswith("vector(")


def test_every_rule_file_is_loaded_and_tested() -> None:
    loaded = {(path.parent / name).resolve() for path in RULE_TESTS for name in read_yaml(path)["rule_files"]}
    assert loaded == set(RULES)
