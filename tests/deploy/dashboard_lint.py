"""The rules that a dashboard keeps: those of Grafana's dashboard linter, and some more.

Each function yields what is wrong, in words; nothing where all is well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.deploy.places import Json, panels, targets
from tests.deploy.promql import RATES, groupings, result_labels, selectors, with_variables

RATE_INTERVAL = "73s"
"""Stands for $__rate_interval while an expression is parsed; no dashboard writes that itself."""
RATE_INTERVAL_S = 73

UNITS = frozenset(
    {"none", "short", "percent", "percentunit", "bytes", "mbytes", "Bps", "s", "hertz", "watt", "joule",
     "celsius", "reqps", "ops", "cps", "bool_yes_no"}
)  # fmt: skip
"""Those of Grafana's units that are used here; its list has some hundreds."""

COUNTER = re.compile(r".*_total$")
HISTOGRAM_CALLED_TOTAL = "vllm:iteration_tokens_total"
COLUMNS = 24

Rule = Callable[[Json], Iterator[str]]


def readable(expr: str, page: Json) -> str:
    """The expression with every variable replaced by something that parses."""
    values = {variable["name"]: ".+" for variable in page["templating"]["list"]}
    return with_variables(expr, {**values, "__rate_interval": RATE_INTERVAL})


def datasource_is_a_choice(page: Json) -> Iterator[str]:
    choices = [one for one in page["templating"]["list"] if one["type"] == "datasource"]
    if [(one["name"], one["label"], one["query"]) for one in choices] != [
        ("datasource", "Data source", "prometheus")
    ]:
        yield "no data source variable of the usual name"
    wanted = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels(page):
        if panel["datasource"] != wanted or any(one["datasource"] != wanted for one in panel["targets"]):
            yield f"{panel['title']}: does not use the chosen data source"


def has_job_and_instance(page: Json) -> Iterator[str]:
    choices = {one["name"]: one for one in page["templating"]["list"]}
    for name in ("job", "instance"):
        one = choices.get(name)
        if one is None:
            yield f"no variable {name}"
        elif (one["type"], one["label"], one["multi"], one["allValue"]) != (
            "query", name.capitalize(), True, ".+",
        ):  # fmt: skip
            yield f"variable {name} is not as usual"


def variables_are_fresh_and_parse(page: Json) -> Iterator[str]:
    for one in page["templating"]["list"]:
        if one["type"] != "query":
            continue
        if one["refresh"] != 2:
            yield f"variable {one['name']} does not follow the time range"
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"])
        if found is None or found[2] != one["name"]:
            yield f"variable {one['name']} has no query for its own label"
            continue
        yield from _parses(f"variable {one['name']}", found[1], page)


def queries_parse(page: Json) -> Iterator[str]:
    for place, target in targets(page):
        yield from _parses(place, target["expr"], page)


def _parses(place: str, expr: str, page: Json) -> Iterator[str]:
    try:
        selectors(readable(expr, page))
    except ValueError as error:
        yield f"{place}: {error}"
    if left := re.findall(r"\$\w+", readable(expr, page)):
        yield f"{place}: no such variable: {left}"


def queries_follow_the_choice(page: Json) -> Iterator[str]:
    for place, target in targets(page):
        for selector in selectors(readable(target["expr"], page)):
            for name in ("job", "instance"):
                if (name, "MatchOp.Re", ".+") not in selector.matchers:
                    yield f"{place}: {selector.name} is not limited to ${name}"


def ranges_follow_the_scrapes(page: Json) -> Iterator[str]:
    for place, target in targets(page):
        for selector in selectors(readable(target["expr"], page)):
            ours = selector.range is not None and selector.range.total_seconds() == RATE_INTERVAL_S
            if selector.around in RATES and not ours:
                yield f"{place}: {selector.around}() without $__rate_interval"
            if selector.around not in RATES and selector.range is not None and ours:
                yield f"{place}: $__rate_interval in {selector.around}()"


def counters_are_rated(page: Json) -> Iterator[str]:
    for place, target in targets(page):
        for selector in selectors(readable(target["expr"], page)):
            name = selector.name or ""
            if COUNTER.match(name) and name != HISTOGRAM_CALLED_TOTAL and selector.around not in RATES:
                yield f"{place}: the counter {name} is shown as it is"


def quantiles_keep_le(page: Json) -> Iterator[str]:
    for place, target in targets(page):
        expr = readable(target["expr"], page)
        if "_bucket" in expr and "le" not in groupings(expr):
            yield f"{place}: buckets are summed over le"


def panels_are_explained(page: Json) -> Iterator[str]:
    for panel in panels(page):
        if not panel["title"].strip() or not panel["description"].strip().endswith("."):
            yield f"{panel['title'] or panel['id']}: no title or no description"
        if panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
            yield f"{panel['title']}: no unit"
        if not panel["targets"]:
            yield f"{panel['title']}: no query"
    for (row, title), number in Counter(_titles(page)).items():
        if number > 1:
            yield f"{row}: {title}: {number} panels have this title"


def _titles(page: Json) -> Iterator[tuple[str, str]]:
    row = ""
    for panel in page["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        else:
            yield row, panel["title"]


def legends_tell_series_apart(page: Json) -> Iterator[str]:
    """Of one panel: labels in a legend exist, and no label that parts series is missing from it."""
    for panel in panels(page):
        texts = [target["legendFormat"] for target in panel["targets"]]
        if len(set(texts)) != len(texts):
            yield f"{panel['title']}: two queries have one legend"
        for target in panel["targets"]:
            labels = result_labels(readable(target["expr"], page))
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            if labels is not None and shown != labels:
                yield f"{panel['title']}: legend shows {sorted(shown)}, series differ by {sorted(labels)}"
            if not target["legendFormat"]:
                yield f"{panel['title']}: no legend"


def is_code(page: Json) -> Iterator[str]:
    if page["editable"]:
        yield "can be edited in Grafana"
    if not re.fullmatch(r"llm-runtime-[a-z]+", page["uid"]):
        yield "no uid of ours"
    if "id" in page:
        yield "has the number of one Grafana's database"


def panels_do_not_overlap(page: Json) -> Iterator[str]:
    taken: dict[tuple[int, int], Any] = {}
    numbers = Counter(panel["id"] for panel in page["panels"])
    yield from (f"id {number} twice" for number, times in numbers.items() if times > 1)
    for panel in page["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > COLUMNS:
            yield f"{panel['title']}: over the edge"
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if (x, y) in taken:
                    yield f"{panel['title']}: over {taken[x, y]}"
                    return
                taken[x, y] = panel["title"]


LINT: tuple[Rule, ...] = (
    datasource_is_a_choice,
    has_job_and_instance,
    variables_are_fresh_and_parse,
    queries_parse,
    queries_follow_the_choice,
    ranges_follow_the_scrapes,
    counters_are_rated,
    quantiles_keep_le,
    panels_are_explained,
    legends_tell_series_apart,
    is_code,
    panels_do_not_overlap,
)
