"""Scenarios: claims that can be run. One module of `scenarios/` each, fixed before its first run.

A module defines `SCENARIO`, and `ON_ENGINE` where what is simulated is confirmed on a real engine. What
it fixes (workload, objectives, bars) is identified by the hash of its source, and the result names the
commit that holds it; a definition that differs from its commit is told as such. Results are one JSON file
each, `NAME.json` or `NAME-quick.json`.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from llm_runtime.bench import facts, scenarios
from llm_runtime.bench.files import write_json
from llm_runtime.bench.settings_json import plain
from llm_runtime.bench.summary import finite
from llm_runtime.core.errors import ConfigError

SCHEMA = "llm-runtime-bench-scenario/1"


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure must reach. quick: whether a quick run is long enough to be held to it."""

    figure: str
    relation: Literal["<=", ">="]
    value: float
    quick: bool = True

    def met_by(self, figure: float | None) -> bool:
        """An unknown or withheld figure meets no bar."""
        if figure is None:
            return False
        return figure <= self.value if self.relation == "<=" else figure >= self.value


@dataclass(frozen=True, slots=True)
class Result:
    """figures: what the bars speak of, by name. details: whatever else a reader may want, as JSON."""

    figures: Mapping[str, float | None]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """workload: everything that shapes the load, as JSON or dataclasses. slos: by class of traffic.

    run: measures; its argument is whether to be quick (under two minutes).
    """

    name: str
    question: str
    workload: Mapping[str, Any]
    bars: tuple[Bar, ...]
    run: Callable[[bool], Awaitable[Result]]
    slos: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checked:
    bar: Bar
    figure: float | None

    @property
    def met(self) -> bool:
        return self.bar.met_by(self.figure)


def all_scenarios() -> dict[str, Scenario]:
    """By name. Imports every module of `scenarios/`."""
    found: dict[str, Scenario] = {}
    for module in pkgutil.iter_modules(scenarios.__path__):
        imported = importlib.import_module(f"{scenarios.__name__}.{module.name}")
        for name in ("SCENARIO", "ON_ENGINE"):
            scenario = getattr(imported, name, None)
            if isinstance(scenario, Scenario):
                found[scenario.name] = scenario
    return dict(sorted(found.items()))


def find(name: str) -> Scenario:
    """Raises ConfigError naming those there are."""
    known = all_scenarios()
    if name not in known:
        raise ConfigError(f"no scenario {name!r}; there are: {', '.join(known)}")
    return known[name]


def check(scenario: Scenario, result: Result, *, quick: bool) -> list[Checked]:
    """Every bar that such a run is held to, with the figure it met or missed."""
    held = [bar for bar in scenario.bars if bar.quick or not quick]
    return [Checked(bar, result.figures.get(bar.figure)) for bar in held]


async def measure(scenario: Scenario, *, quick: bool, folder: Path, command: str | None = None) -> Result:
    """Runs it and writes its file into `folder`. What it was made of is noted before it begins: by its end
    the checkout may be another one."""
    defined, environment = identity(scenario), facts.environment()
    started = datetime.now(UTC)
    result = await scenario.run(quick)
    ended = datetime.now(UTC)
    body = {
        "schema": SCHEMA,
        "scenario": scenario.name,
        "question": scenario.question,
        "quick": quick,
        "figures": dict(result.figures),
        "bars": [
            {"figure": c.bar.figure, "relation": c.bar.relation, "value": c.bar.value, "met": c.met}
            for c in check(scenario, result, quick=quick)
        ],
        "definition": {
            **defined,
            "workload": plain(dict(scenario.workload)),
            "slos": plain(dict(scenario.slos)),
        },
        "started": started.isoformat(timespec="seconds"),
        "duration_s": (ended - started).total_seconds(),
        "command": command,
        "environment": environment,
        "details": dict(result.details),
    }
    write_json(result_path(scenario, folder, quick=quick), finite(body))
    return result


def result_path(scenario: Scenario, folder: Path, *, quick: bool) -> Path:
    return folder / f"{scenario.name}{'-quick' if quick else ''}.json"


def identity(scenario: Scenario) -> dict[str, Any]:
    """Hash of the module's source, the last commit that changed it, and whether it differs from that.

    commit None: never committed, or no repository here.
    """
    source = Path(str(sys.modules[scenario.run.__module__].__file__))
    commit = facts.git("log", "-1", "--format=%H", "--", str(source)) or None
    changed = facts.git("status", "--porcelain", "--", str(source))
    return {
        "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "commit": commit,
        "differs_from_commit": None if commit is None else bool(changed),
    }
