"""Whose processor time a window counts as whose."""

from __future__ import annotations

import pytest

from benchmarks.overhead import procs, window
from benchmarks.overhead.calls import Tally
from benchmarks.overhead.phase import Phase
from benchmarks.overhead.window import Window

PARTICIPANT, STUB, DRIVER = 11, 12, 13


@pytest.mark.parametrize(("driver_pid", "foreign_s"), [(DRIVER, 0.5), (None, 0.9)])
def test_what_the_driver_has_started_is_counted_once(
    monkeypatch: pytest.MonkeyPatch, driver_pid: int | None, foreign_s: float
) -> None:
    """The driver's tree holds the participant, the stub and the load; the machine was busy for 1.5 s."""
    used_s = {PARTICIPANT: 0.3, STUB: 0.2, DRIVER: 1.0}
    ends = iter((0, 1))
    share = 0

    def begin_or_end() -> float:
        nonlocal share
        share = next(ends)
        return float(share)

    monkeypatch.setattr(window, "now", begin_or_end)
    monkeypatch.setattr(window, "process_time", lambda: 0.1 * share)
    monkeypatch.setattr(procs, "cpu_s", lambda pid: used_s[pid] * share)
    monkeypatch.setattr(procs, "machine_busy_s", lambda: 1.5 * share)
    phase = Phase(
        "plain", "127.0.0.1", 1, "m", {}, 1.0, 0.0, 1, "", root_pid=PARTICIPANT, stub_pid=STUB,
        driver_pid=driver_pid,
    )  # fmt: skip
    measured = Window(phase, Tally())
    measured.open()
    measured.close()
    result = measured.result(0)
    assert result.cpu_s == pytest.approx(0.3)
    assert result.foreign_cpu_share == pytest.approx(foreign_s)
