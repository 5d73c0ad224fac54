"""The same load at several levels, and optionally on a server started anew for every setting of it.

Repeats go round all levels before any is repeated, so that a drift of the machine meets all alike.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from llm_runtime.bench import metrics
from llm_runtime.bench.config import ClosedLoop, OpenLoop, Plan
from llm_runtime.bench.launch import launched
from llm_runtime.bench.records import RequestRecord
from llm_runtime.bench.run import Interrupt, Interrupted, Watcher, run
from llm_runtime.bench.summary import latency_keys, summarise
from llm_runtime.core.errors import ConfigError

SCHEMA = "llm-runtime-bench-sweep/1"
PER_RUN = ("output_throughput", "request_throughput", "duration")


@dataclass(frozen=True, slots=True)
class Levels:
    """Loads to try, ascending: either concurrencies or rates. requests_per_level: requests of a run for
    every unit of the level, where a fixed number would be too few or last too long; else the plan's."""

    concurrencies: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    requests_per_level: float | None = None

    def plans(self, plan: Plan) -> list[Plan]:
        """Raises ConfigError unless exactly one kind of level is given."""
        if bool(self.concurrencies) == bool(self.rates):
            raise ConfigError("a sweep goes over concurrencies or over rates: give one of them")
        if self.concurrencies:
            loads = [(replace(_closed(plan), concurrency=level), level) for level in self.concurrencies]
            return [self._limited(replace(plan, load=load), level) for load, level in loads]
        open_load = plan.load if isinstance(plan.load, OpenLoop) else OpenLoop()
        return [
            self._limited(replace(plan, load=replace(open_load, rate=rate, profile=())), rate)
            for rate in self.rates
        ]

    def _limited(self, plan: Plan, level: float) -> Plan:
        if self.requests_per_level is None:
            return plan
        requests = max(1, round(self.requests_per_level * level))
        return replace(plan, limits=replace(plan.limits, requests=requests))


@dataclass(frozen=True, slots=True)
class Server:
    """template: command line with `{port}` and the names of `vary`; every combination is tried."""

    template: str
    vary: Mapping[str, Sequence[str]]

    def settings(self) -> list[dict[str, str]]:
        return [dict(zip(self.vary, values, strict=True)) for values in product(*self.vary.values())]


@dataclass(frozen=True, slots=True)
class Point:
    """One run: at this level, of this repeat, on a server with these settings. records: measured."""

    level: float
    repeat: int
    server: Mapping[str, str]
    summary: dict[str, Any]
    records: Sequence[RequestRecord] = ()


async def sweep(
    plan: Plan,
    levels: Levels,
    *,
    repeats: int = 1,
    server: Server | None = None,
    watcher: Watcher | None = None,
    interrupt: Interrupt | None = None,
) -> list[Point]:
    """All points, or those until interrupted. With `server`, the plan's URL is not used."""
    interrupt = interrupt or Interrupt()
    points: list[Point] = []
    for settings in server.settings() if server else [{}]:
        async with _served(plan, server, settings) as served:
            for repeat in range(repeats):
                for level in levels.plans(replace(served, seed=plan.seed + repeat)):
                    try:
                        result = await run(level, watcher, interrupt)
                    except Interrupted:
                        return points
                    records = metrics.measured(result.records)
                    points.append(Point(level_of(level), repeat, settings, summarise(result), records))
                    if interrupt.requested:
                        return points
    return points


def level_of(plan: Plan) -> float:
    load = plan.load
    if isinstance(load, ClosedLoop):
        return load.concurrency
    return load.rate if isinstance(load, OpenLoop) else 0.0


def as_json(points: Sequence[Point], levels: Levels, command: str | None = None) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "command": command,
        "parameter": "concurrency" if levels.concurrencies else "rate",
        "points": [
            {"level": p.level, "repeat": p.repeat, "server": dict(p.server), "summary": p.summary}
            for p in points
        ],
        "pooled": pooled(points),
    }


def pooled(points: Sequence[Point]) -> list[dict[str, Any]]:
    """For each setting and level, all repeats together: latencies of all their requests, so that short runs
    can have percentiles too, and the mean and extremes of what is one figure per run."""
    groups: dict[tuple[tuple[tuple[str, str], ...], float], list[Point]] = {}
    for point in points:
        groups.setdefault((tuple(point.server.items()), point.level), []).append(point)
    return [
        {
            "server": dict(settings),
            "level": level,
            "num_repeats": len(group),
            "num_prompts": sum(point.summary["num_prompts"] for point in group),
            "failed": sum(point.summary["failed"] for point in group),
            **{key: _spread([point.summary[key] for point in group]) for key in PER_RUN},
            "queue_wait_ms": _spread([_queue_wait_ms(point.summary) for point in group]),
            **latency_keys([record for point in group for record in point.records], 0),
        }
        for (settings, level), group in groups.items()
    ]


def _queue_wait_ms(summary: Mapping[str, Any]) -> float | None:
    wait_s = summary["server_means"].get("queue_wait_s")
    return None if wait_s is None else 1e3 * wait_s


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    return {"mean": statistics.fmean(known), "min": min(known), "max": max(known)}


def _closed(plan: Plan) -> ClosedLoop:
    return plan.load if isinstance(plan.load, ClosedLoop) else ClosedLoop()


@asynccontextmanager
async def _served(plan: Plan, server: Server | None, settings: Mapping[str, str]) -> AsyncIterator[Plan]:
    if server is None:
        yield plan
        return
    async with launched(server.template, settings) as url:
        yield replace(plan, target=replace(plan.target, url=url))
