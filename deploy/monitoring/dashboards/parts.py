"""What a dashboard is made of, and the JSON that Grafana reads. No metric is named here.

Ids, positions and letters of queries follow from the order, so the same content gives the same file.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from string import ascii_uppercase
from typing import Any, Literal

COLUMNS = 24
PANEL_HEIGHT = 8
STAT_HEIGHT = 4
SCHEMA_VERSION = 39
"""Of Grafana 11; newer ones migrate it when they load it."""

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "llm-runtime"

Kind = Literal["timeseries", "stat", "heatmap", "state-timeline"]
Json = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """legend: as Grafana writes it, `{{label}}` for a label's value."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """unit: one of Grafana's. steps: from which value on a colour holds, the first from anywhere."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    stacked: bool = False
    maximum: float | None = None
    steps: tuple[tuple[float | None, str], ...] = ((None, "green"),)


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice above the dashboard: the values of one label of some series."""

    name: str
    selector: str

    @property
    def query(self) -> str:
        return f"label_values({self.selector}, {self.name})"


@dataclass(frozen=True)
class Dashboard:
    """uid: also the file's name. Links and bookmarks depend on it: it never changes."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


def stat(title: str, description: str, unit: str, expr: str, **more: Any) -> Panel:
    """One number."""
    return Panel(title, description, unit, (Query(expr, title),), kind="stat", width=4, **more)


def heatmap(title: str, description: str, unit: str, expr: str) -> Panel:
    """Of a histogram's buckets, summed by `le`."""
    return Panel(title, description, unit, (Query(expr, "{{le}}"),), kind="heatmap")


def as_json(dashboard: Dashboard) -> Json:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource_choice(), *map(_choice, dashboard.variables)]},
        "annotations": {"list": []},
        "links": [_link_to_the_others()],
        "panels": list(_panels(dashboard.rows)),
    }


def _panels(rows: tuple[Row, ...]) -> list[Json]:
    numbers = count(1)
    top = 0
    panels: list[Json] = []
    for row in rows:
        panels.append(
            {
                "id": next(numbers), "type": "row", "title": row.title, "collapsed": False, "panels": [],
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            }
        )  # fmt: skip
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, height = 0, top + height, 0
            tall = STAT_HEIGHT if panel.kind == "stat" else PANEL_HEIGHT
            place = {"x": left, "y": top, "w": panel.width, "h": tall}
            panels.append(_panel(panel, next(numbers), place))
            left, height = left + panel.width, max(height, tall)
        top += height
    return panels


def _panel(panel: Panel, number: int, place: Json) -> Json:
    defaults: Json = {
        "unit": panel.unit,
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "thresholds": {
            "mode": "absolute",
            "steps": [{"value": value, "color": colour} for value, colour in panel.steps],
        },
        "custom": _drawing(panel),
    }
    if panel.kind == "timeseries":
        defaults["min"] = 0
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": [
            _target(query, letter, panel)
            for query, letter in zip(panel.queries, ascii_uppercase, strict=False)
        ],
    }


def _target(query: Query, letter: str, panel: Panel) -> Json:
    return {
        "refId": letter,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "instant": panel.kind == "stat",
        "range": panel.kind != "stat",
    }


def _drawing(panel: Panel) -> Json:
    if panel.kind != "timeseries":
        return {}
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 25 if panel.stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }


def _options(panel: Panel) -> Json:
    match panel.kind:
        case "stat":
            return {
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "value", "graphMode": "none", "textMode": "value",
            }  # fmt: skip
        case "heatmap":
            return {
                "calculate": False,
                "cellGap": 1,
                "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
                "yAxis": {"unit": panel.unit},
                "tooltip": {"mode": "single", "yHistogram": False},
            }
        case "state-timeline":
            return {"mergeValues": True, "showValue": "never", "rowHeight": 0.8}
        case _:
            return {
                "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max"]},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }


def _datasource_choice() -> Json:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "current": {},
        "refresh": 1,
    }


def _choice(variable: Variable) -> Json:
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.name.capitalize(),
        "datasource": DATASOURCE,
        "query": variable.query,
        "definition": variable.query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _link_to_the_others() -> Json:
    return {
        "type": "dashboards", "title": "LLM Runtime", "tags": [TAG], "asDropdown": True,
        "includeVars": True, "keepTime": True, "targetBlank": False,
    }  # fmt: skip
