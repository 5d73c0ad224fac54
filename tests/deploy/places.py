"""Where the files that are tested here lie, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MONITORING = DEPLOY / "monitoring"
DASHBOARDS = sorted((MONITORING / "grafana" / "dashboards").glob("*.json"))
RULES = sorted((MONITORING / "rules").glob("*.yml"))
RULE_TESTS = sorted((MONITORING / "tests").glob("*.yml"))

Json = dict[str, Any]


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def read_all_yaml(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def dashboard(path: Path) -> Json:
    read: Json = json.loads(path.read_text(encoding="utf-8"))
    return read


def panels(page: Json) -> list[Json]:
    """Those that show something: rows are headings."""
    return [panel for panel in page["panels"] if panel["type"] != "row"]


def targets(page: Json) -> Iterator[tuple[str, Json]]:
    """Each query with where it stands, for messages."""
    for panel in panels(page):
        for target in panel["targets"]:
            yield f"{page['title']}: {panel['title']}: {target['refId']}", target


def rules() -> list[Json]:
    return [rule for path in RULES for group in read_yaml(path)["groups"] for rule in group["rules"]]


def alerts() -> list[Json]:
    return [rule for rule in rules() if "alert" in rule]
