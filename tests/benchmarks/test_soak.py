from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.overhead import soak_report
from benchmarks.overhead.soak import MAX_GROWTH_BYTES, MAX_STALLED_BYTES, Sample, Soak
from tests.benchmarks.builders import poisson

FLAT = Soak(
    "ours",
    requests=[Sample(1000 * n, 60_000_000 + (20_000_000 if n > 1 else 0)) for n in range(1, 11)],
    stalled=[Sample(0, 80_000_000), Sample(1, 90_000_000), Sample(2, 81_000_000)],
    num_stalled=100,
    bystanders=poisson(0.02, 0.001),
)


def test_growth_counts_after_the_first_fifth() -> None:
    assert FLAT.growth_bytes == 0
    assert FLAT.slope_bytes == 0
    assert FLAT.passed


def test_a_leak_is_seen_as_growth_and_slope() -> None:
    leak = [Sample(1000 * n, 60_000_000 + 2_000_000 * n) for n in range(1, 11)]
    leaking = replace(FLAT, requests=leak)
    assert leaking.slope_bytes == pytest.approx(2000)
    assert leaking.growth_bytes == 16_000_000 > MAX_GROWTH_BYTES
    assert not leaking.passed


def test_readers_that_stall_are_charged_the_highest_point() -> None:
    assert FLAT.stalled_bytes == 100_000
    heavy = replace(FLAT, stalled=[Sample(0, 0), Sample(1, 101 * MAX_STALLED_BYTES), Sample(2, 0)])
    assert not heavy.passed


def test_failures_and_missing_halves_do_not_pass() -> None:
    assert not replace(FLAT, failures={"ended unread": 1}).passed
    assert not replace(FLAT, stalled=[]).passed
    assert not replace(FLAT, requests=[]).passed
    assert not replace(FLAT, problem="it died").passed


def test_report_and_picture(tmp_path: Path) -> None:
    text = soak_report.as_markdown([FLAT, replace(FLAT, participant="other", problem="it died")])
    assert "| ours | 10000 | 0.0 | 0.0 | 100 | 98 | 1.00 | passed |" in text
    assert "FAILED it died" in text
    (told,) = soak_report.as_json([FLAT], "command", {})["soaks"]
    assert told["stalled_bytes_per_reader"] == 100_000
    if soak_report.draw([FLAT], tmp_path / "memory.svg"):
        assert (tmp_path / "memory.svg").read_bytes().startswith(b"<?xml")
