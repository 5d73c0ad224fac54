"""Every metric and label that a dashboard or a rule names is one that a program really exposes."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_runtime.core.outcome import Outcome
from llm_runtime.core.request import PriorityClass
from llm_runtime.telemetry.base import BREAKER_STATES, ENGINE_STATES
from llm_runtime.telemetry.labels import SPECIAL_REASONS, error_reasons
from tests.deploy import dashboard_lint as lint
from tests.deploy.exporters import dcgm
from tests.deploy.loaded import KEYS, VLLM, everything
from tests.deploy.places import DASHBOARDS, MONITORING, ROOT, dashboard, rules, targets
from tests.deploy.promql import groupings, selectors
from tests.support.http import get

LIMIT_S = 40.0
PROMETHEUS_OWN = {"up": set[str]()}
# The library's parser renames counters that do not end in _total, as DCGM's and llama.cpp's.
LABEL = re.compile(r'[{,](\w+)="')
BY_SCRAPE = {"job", "instance"}
WORDS: dict[str, set[str]] = {
    "outcome": {outcome.value for outcome in Outcome},
    "state": {*ENGINE_STATES, *BREAKER_STATES},
    "priority_class": {one.value for one in PriorityClass},
    "reason": set(error_reasons()) | SPECIAL_REASONS,
}


def expressions() -> Iterator[tuple[str, str]]:
    """All of them, each with where it stands; variables replaced."""
    for path in DASHBOARDS:
        page = dashboard(path)
        for place, target in targets(page):
            yield place, lint.readable(target["expr"], page)
        for one in page["templating"]["list"]:
            if one["type"] == "query":
                inner = one["query"].removeprefix("label_values(").rpartition(",")[0]
                yield f"{page['title']}: variable {one['name']}", lint.readable(inner, page)
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]


def recorded() -> dict[str, set[str]]:
    """What rules add: names with the labels that their expressions keep."""
    found: dict[str, set[str]] = {}
    for rule in rules():
        if "record" in rule:
            kept = groupings(rule["expr"]) | set(rule.get("labels", {}))
            found.setdefault(rule["record"], set()).update(kept)
    return found


def exposed(text: str) -> dict[str, set[str]]:
    """Each series' name with every label seen on it."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")[0].partition("{")
            found.setdefault(name, set()).update(LABEL.findall(line) if rest else ())
    return found


@pytest.mark.engine
async def test_every_name_and_label_is_in_a_live_scrape(tmp_path: Path) -> None:
    known = {**PROMETHEUS_OWN, **recorded()}
    missing = dict(expressions())
    async with everything(tmp_path) as jobs:
        addresses = [address for addresses in jobs.values() for address in addresses]
        end = time.monotonic() + LIMIT_S
        while missing and time.monotonic() < end:
            for address in addresses:
                for name, labels in exposed(await _scraped(address)).items():
                    known.setdefault(name, set()).update(labels)
            missing = {place: expr for place, expr in missing.items() if list(_unknown(expr, known))}
    assert not missing, {place: list(_unknown(expr, known)) for place, expr in missing.items()}


async def _scraped(address: str) -> str:
    headers = {"accept": "text/plain", "authorization": f"Bearer {KEYS[0]}"}
    reply = await get(int(address.rpartition(":")[2]), "/metrics", headers)
    assert reply.status == 200
    return reply.body.decode()


def _unknown(expr: str, known: dict[str, set[str]]) -> Iterator[str]:
    labels = set(BY_SCRAPE)
    for selector in selectors(expr):
        for name in selector.names:
            if name not in known:
                yield name
            labels |= known.get(name, set())
            for label in selector.labels - BY_SCRAPE - known.get(name, set()):
                yield f"{name}{{{label}}}"
    yield from groupings(expr) - labels


def test_every_word_in_a_matcher_is_one_that_the_server_says() -> None:
    seen: set[str] = set()
    for place, expr in expressions():
        for selector in selectors(expr):
            if not (selector.name or "").startswith("llm_runtime_"):
                continue
            for label, _, value in selector.matchers:
                if label in WORDS and value != ".+":
                    assert set(value.split("|")) <= WORDS[label], (place, label, value)
                    seen.add(label)
    assert seen == {"outcome", "reason", "state"}


def test_the_gpu_pages_need_no_field_that_is_not_exported_and_none_is_exported_in_vain() -> None:
    exported = {name for name, kind, _ in dcgm.fields(MONITORING / "dcgm-counters.csv") if kind != "label"}
    used = {
        name
        for _, expr in expressions()
        for selector in selectors(expr)
        for name in selector.names
        if name.startswith("DCGM_")
    }
    assert used == exported


@pytest.mark.vllm
def test_the_recording_of_vllm_has_the_names_of_the_vllm_that_is_installed() -> None:
    python = ROOT / ".venv-vllm" / "bin" / "python"
    code = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    folder = Path(found.stdout.strip()) / "v1" / "metrics"
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    names = re.findall(r"^# TYPE (\S+)", VLLM.read_text(), re.MULTILINE)
    assert len(names) > 30
    for name in names:
        assert f'"{name.removesuffix("_total")}"' in source or f'"{name}"' in source, name
