"""Two targets under the same load in alternating rounds, and what can honestly be said of the difference.

A round sends both the same arrivals and lengths (one seed), in other words (a salt each, so that a
shared engine's cache helps neither). What is compared is the ratio within a round; what is told is
the geometric mean of the ratios with a 95 % interval over rounds. An interval that holds 1 is
"no difference", never a trend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from llm_runtime.bench import stats
from llm_runtime.bench.config import Plan
from llm_runtime.bench.run import Interrupt, Interrupted, Watcher, run
from llm_runtime.bench.summary import finite, summarise
from llm_runtime.core.errors import ConfigError

SCHEMA = "llm-runtime-bench-compare/1"
MIN_ROUNDS = 5

Finding = Literal["better", "worse", "no difference", "too few rounds"]
Direction = Literal["higher", "lower"]

FIGURES: Mapping[str, Direction] = {
    "request_throughput": "higher",
    "output_throughput": "higher",
    "request_goodput": "higher",
    "mean_ttft_ms": "lower",
    "median_ttft_ms": "lower",
    "p95_ttft_ms": "lower",
    "mean_tpot_ms": "lower",
    "mean_itl_ms": "lower",
    "mean_e2el_ms": "lower",
    "median_e2el_ms": "lower",
    "p95_e2el_ms": "lower",
    "p99_e2el_ms": "lower",
}
NOT_KEPT = frozenset({"server", "environment", "samples", "settings", "percentile_rule", "command"})
"""Of each round's summary: the same in all, or too much."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """B by A. ratios: of the rounds used; interval: None below five. finding: of B, seen from A."""

    figure: str
    ratios: tuple[float, ...]
    mean: float
    interval: stats.Interval | None
    finding: Finding


@dataclass(frozen=True, slots=True)
class Round:
    """Summaries of both; used: whether both were fit for use."""

    seed: int
    first: Literal["a", "b"]
    a: Mapping[str, Any]
    b: Mapping[str, Any]

    @property
    def used(self) -> bool:
        return all(side["verdict"]["state"] == "ok" for side in (self.a, self.b))


async def compare(
    plan: Plan, other: Plan, rounds: int, watcher: Watcher | None = None, interrupt: Interrupt | None = None
) -> list[Round]:
    """Runs `plan` (A) and `other` (B) `rounds` times, changing who goes first. Stops early when
    interrupted, keeping whole rounds. Raises what `run` raises, before any round or within it."""
    if rounds < 1:
        raise ConfigError("a comparison needs at least one round")
    interrupt = interrupt or Interrupt()
    done: list[Round] = []
    for number in range(rounds):
        seed = plan.seed + number
        a_first = number % 2 == 0
        pair = {"a": replace(plan, seed=seed), "b": replace(other, seed=seed)}
        found: dict[str, dict[str, Any]] = {}
        for name in ("a", "b") if a_first else ("b", "a"):
            try:
                found[name] = summarise(await run(pair[name], watcher, interrupt))
            except Interrupted:
                return done
            if interrupt.requested:
                return done
        done.append(Round(seed, "a" if a_first else "b", found["a"], found["b"]))
    return done


def ratios(rounds: Sequence[Round], seed: int) -> list[Ratio]:
    """Of every figure that both sides have, above 0, in every round used."""
    used = [each for each in rounds if each.used]
    found = []
    for figure, direction in FIGURES.items():
        pairs = [(each.a[figure], each.b[figure]) for each in used]
        if pairs and all(a and b for a, b in pairs):
            found.append(judged(figure, direction, [b / a for a, b in pairs], seed))
    return found


def judged(figure: str, direction: Direction, values: Sequence[float], seed: int) -> Ratio:
    logs = [math.log(value) for value in values]
    mean = math.exp(math.fsum(logs) / len(logs))
    bounds = stats.mean_interval(logs, seed)
    if bounds is None:
        return Ratio(figure, tuple(values), mean, None, "too few rounds")
    low, high = math.exp(bounds[0]), math.exp(bounds[1])
    finding: Finding = "no difference"
    if low > 1 or high < 1:
        finding = "better" if (low > 1) == (direction == "higher") else "worse"
    return Ratio(figure, tuple(values), mean, (low, high), finding)


def as_json(rounds: Sequence[Round], found: Sequence[Ratio], command: str | None = None) -> dict[str, Any]:
    first = rounds[0] if rounds else None
    body: dict[str, Any] = finite(
        {
            "schema": SCHEMA,
            "command": command,
            "num_rounds": len(rounds),
            "num_used": sum(each.used for each in rounds),
            "figures": {ratio.figure: asdict(ratio) for ratio in found},
            "a": _side(first.a) if first else None,
            "b": _side(first.b) if first else None,
            "rounds": [_round(each) for each in rounds],
        }
    )
    return body


def _round(each: Round) -> dict[str, Any]:
    sides = {"a": _kept(each.a), "b": _kept(each.b)}
    return {"seed": each.seed, "first": each.first, "used": each.used, **sides}


def _side(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: summary[key] for key in ("model_id", "settings", "server", "environment")}


def _kept(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if key not in NOT_KEPT}
