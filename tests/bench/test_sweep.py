"""Sweeps: the order of points, and what an interruption leaves."""

from __future__ import annotations

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target
from llm_runtime.bench.present import sweep_lines
from llm_runtime.bench.run import Interrupt
from llm_runtime.bench.stub import serve
from llm_runtime.bench.sweep import Levels, as_json, sweep
from tests.bench.loads import QUICK, SMALL, counting

LEVELS = Levels((1, 2), requests_per_level=2)


def plan_for(port: int) -> Plan:
    return Plan(
        Target(f"http://127.0.0.1:{port}"), ClosedLoop(), (SMALL,), Limits(requests=1, warmup_requests=0)
    )


async def test_all_levels_come_before_any_comes_again() -> None:
    async with serve(QUICK) as stub:
        points = await sweep(plan_for(stub.port), LEVELS, repeats=2)
    assert [(point.level, point.repeat) for point in points] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    assert [point.summary["num_prompts"] for point in points] == [2, 4, 2, 4]
    assert [point.summary["settings"]["seed"] for point in points] == [0, 0, 1, 1]
    body = as_json(points, LEVELS)
    assert body["parameter"] == "concurrency"
    rows = [line.split() for line in sweep_lines(body) if line.split()[0] in ("1", "2")]
    assert [row[0] for row in rows] == ["1", "2", "1", "2"]
    assert all(row[-1] == "0" for row in rows)


async def test_an_interruption_keeps_the_points_until_then() -> None:
    interrupt = Interrupt()
    async with serve(QUICK, counting(4, interrupt.request)) as stub:
        points = await sweep(plan_for(stub.port), LEVELS, repeats=50, interrupt=interrupt)
    assert [point.level for point in points] == [1, 2]
    assert points[1].summary["verdict"]["interrupted"]
