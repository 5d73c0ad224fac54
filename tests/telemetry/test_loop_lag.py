"""Event-loop lag: what is measured and how long its peak is remembered."""

from __future__ import annotations

import asyncio
import time

import pytest

from llm_runtime.telemetry.loop_lag import LoopLag


def lag() -> LoopLag:
    return LoopLag(window_s=60.0, now=lambda: 0.0)


def test_the_lag_is_how_late_a_timer_fired() -> None:
    monitor = lag()
    monitor.record(planned_at=1.0, now=1.25)
    assert (monitor.last_s, monitor.max_s) == (0.25, 0.25)
    monitor.record(planned_at=2.0, now=2.0)
    assert (monitor.last_s, monitor.max_s) == (0.0, 0.25)


def test_a_timer_that_fires_early_is_no_lag() -> None:
    monitor = lag()
    monitor.record(planned_at=1.0, now=0.999)
    assert (monitor.last_s, monitor.max_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("later_s", "remembered"), [(1, True), (29, True), (31, True), (58, True), (91, False)]
)
def test_a_peak_is_remembered_for_half_to_a_whole_window(later_s: float, remembered: bool) -> None:
    monitor = lag()
    monitor.record(planned_at=0.5, now=1.0)
    for second in range(2, int(1 + later_s) + 1):
        monitor.record(planned_at=second, now=second)
    assert (monitor.max_s == 0.5) is remembered


def test_a_peak_is_forgotten_after_a_window_without_measurements() -> None:
    monitor = lag()
    monitor.record(planned_at=0.5, now=1.0)
    monitor.record(planned_at=95.0, now=95.0)
    assert monitor.max_s == 0.0


def test_reading_does_not_reset() -> None:
    monitor = lag()
    monitor.record(planned_at=0.5, now=1.0)
    assert [monitor.max_s, monitor.max_s] == [0.5, 0.5]


def test_a_stall_longer_than_the_window_is_the_peak_afterwards() -> None:
    monitor = lag()
    monitor.record(planned_at=1.0, now=200.0)
    assert monitor.max_s == 199.0
    monitor.record(planned_at=201.0, now=201.0)
    assert monitor.max_s == 199.0


async def test_a_blocked_loop_is_seen() -> None:
    monitor = LoopLag(interval_s=0.01)
    task = asyncio.create_task(monitor.run())
    await asyncio.sleep(0)
    time.sleep(0.1)  # noqa: ASYNC251 - the blocked loop is what is under test
    for _ in range(3):
        await asyncio.sleep(0)
    assert monitor.max_s >= 0.08
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
