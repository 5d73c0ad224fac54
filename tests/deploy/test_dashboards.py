"""The committed dashboards are what the builder writes, and they keep every rule; each rule can fail."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy import dashboard_lint as lint
from tests.deploy.places import DASHBOARDS, MONITORING, Json, dashboard, panels, read_yaml

PAGES = {path.stem: dashboard(path) for path in DASHBOARDS}


def test_the_files_are_what_the_builder_writes(tmp_path: Path) -> None:
    builder = MONITORING / "build_dashboards.py"
    subprocess.run([sys.executable, str(builder), "--into", str(tmp_path)], check=True)
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS}
    assert written == committed, "run: python deploy/monitoring/build_dashboards.py"


def test_there_are_four_and_each_is_called_as_its_file() -> None:
    assert {name: page["uid"] for name, page in PAGES.items()} == {
        name: name
        for name in ("llm-runtime-engine", "llm-runtime-gpu", "llm-runtime-queue", "llm-runtime-traffic")
    }
    assert len({page["title"] for page in PAGES.values()}) == len(PAGES)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("rule", lint.LINT, ids=lambda rule: rule.__name__)
def test_every_rule_is_kept(name: str, rule: lint.Rule) -> None:
    assert list(rule(PAGES[name])) == []


def _first(page: Json) -> Json:
    return panels(page)[0]


def _expr(expr: str) -> Callable[[Json], None]:
    def spoil(page: Json) -> None:
        _first(page)["targets"][0]["expr"] = expr

    return spoil


def _set(where: Callable[[Json], Json], key: str, value: object) -> Callable[[Json], None]:
    def spoil(page: Json) -> None:
        where(page)[key] = value

    return spoil


CHOSEN = 'job=~"$job", instance=~"$instance"'

SPOILT: list[tuple[lint.Rule, Callable[[Json], None]]] = [
    (lint.datasource_is_a_choice, _set(_first, "datasource", {"type": "prometheus", "uid": "abc"})),
    (lint.datasource_is_a_choice, lambda page: page["templating"]["list"].pop(0)),
    (lint.has_job_and_instance, lambda page: page["templating"]["list"].pop(1)),
    (lint.has_job_and_instance, _set(lambda page: page["templating"]["list"][2], "allValue", ".*")),
    (lint.variables_are_fresh_and_parse, _set(lambda page: page["templating"]["list"][1], "refresh", 1)),
    (lint.variables_are_fresh_and_parse, _set(lambda page: page["templating"]["list"][1], "query", "a{")),
    (lint.queries_parse, _expr("sum(rate(x[5m])")),
    (lint.queries_parse, _expr('sum(x{model="$modell"})')),
    (lint.queries_follow_the_choice, _expr('sum(x{job=~"$job"})')),
    (lint.ranges_follow_the_scrapes, _expr(f"sum(rate(x{{{CHOSEN}}}[5m]))")),
    (lint.ranges_follow_the_scrapes, _expr(f"max_over_time(x{{{CHOSEN}}}[$__rate_interval])")),
    (lint.counters_are_rated, _expr(f"sum(x_total{{{CHOSEN}}})")),
    (lint.quantiles_keep_le, _expr("histogram_quantile(0.9, sum by (a) (rate(x_bucket[5m])))")),
    (lint.panels_are_explained, _set(_first, "description", "")),
    (lint.panels_are_explained, _set(_first, "title", "")),
    (lint.panels_are_explained, _set(_first, "targets", [])),
    (
        lint.panels_are_explained,
        _set(lambda page: _first(page)["fieldConfig"]["defaults"], "unit", "seconds"),
    ),
    (lint.panels_are_explained, lambda page: page["panels"].insert(1, _first(page))),
    (lint.legends_tell_series_apart, _expr("sum by (model) (x)")),
    (lint.legends_tell_series_apart, _set(lambda page: _first(page)["targets"][0], "legendFormat", "")),
    (lint.is_code, _set(lambda page: page, "editable", True)),
    (lint.is_code, _set(lambda page: page, "uid", "")),
    (lint.panels_do_not_overlap, _set(lambda page: _first(page)["gridPos"], "x", 1)),
    (lint.panels_do_not_overlap, _set(lambda page: _first(page)["gridPos"], "w", 25)),
]


@pytest.mark.parametrize(("rule", "spoil"), SPOILT, ids=lambda value: getattr(value, "__name__", ""))
def test_every_rule_finds_what_it_is_for(rule: lint.Rule, spoil: Callable[[Json], None]) -> None:
    page = copy.deepcopy(PAGES["llm-runtime-traffic"])
    assert not list(rule(page))
    spoil(page)
    assert list(rule(page))


def test_every_rule_is_tried() -> None:
    assert {rule for rule, _ in SPOILT} == set(lint.LINT)


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    provisioning = MONITORING / "grafana" / "provisioning"
    (source,) = read_yaml(provisioning / "datasources" / "prometheus.yml")["datasources"]
    scraping = read_yaml(MONITORING / "prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraping
    (provider,) = read_yaml(provisioning / "dashboards" / "llm-runtime.yml")["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
