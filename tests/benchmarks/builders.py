"""Turns and results with only what a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.overhead.phase import Result
from benchmarks.overhead.plan import PhaseName
from benchmarks.overhead.turn import Turn


def result(**members: Any) -> Result:
    usual: dict[str, Any] = {
        "window_s": 1.0, "num_tokens": 0, "num_streams": 0, "num_plain": 0, "num_sent": 0, "num_retries": 0,
        "num_connects": 0, "failures": {}, "cpu_s": None, "load_cpu_share": 0.1, "stub_cpu_share": 0.1,
        "foreign_cpu_share": 0.0,
    }  # fmt: skip
    return Result(**{**usual, **members})


def poisson(ttft_s: float, delay_s: float) -> Result:
    """Every quantile of a quantity is the same."""
    quantiles = {
        name: {"n": 100.0, "mean": value, "p50": value, "p90": value, "p99": value}
        for name, value in (("ttft_s", ttft_s), ("delay_s", delay_s), ("itl_s", 0.02), ("lag_s", 0.0))
    }
    return result(quantiles=quantiles)


def turn(name: str, number: int, results: Mapping[PhaseName, Result], **members: Any) -> Turn:
    return Turn(name, number, dict(results), **members)


def costs(name: str, number: int, token_us: float, plain_ms: float, **members: Any) -> Turn:
    """A turn that cost so much."""
    return turn(
        name,
        number,
        {
            "streams": result(num_tokens=1000, cpu_s=token_us / 1e3),
            "plain": result(num_plain=1000, cpu_s=plain_ms),
        },
        **members,
    )
