"""The measured part of a phase: counters and CPU clocks read at the same two instants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic as now
from time import process_time

from benchmarks.overhead import procs
from benchmarks.overhead.calls import Tally
from benchmarks.overhead.phase import Phase, Result


@dataclass(frozen=True, slots=True)
class _Meters:
    at: float
    participant_s: float | None
    stub_s: float
    load_s: float
    driver_s: float
    machine_s: float


class Window:
    """Opens and closes the measurement: counters and CPU clocks at the same instant."""

    def __init__(self, phase: Phase, tally: Tally) -> None:
        self._phase = phase
        self._tally = tally
        self._opened: _Meters | None = None
        self._closed: _Meters | None = None

    def open(self) -> None:
        self._opened = self._read()
        self._tally.measuring = True

    def close(self) -> None:
        self._tally.measuring = False
        self._closed = self._read()

    def result(self, num_connects: int) -> Result:
        assert self._opened is not None
        assert self._closed is not None
        before, after, tally = self._opened, self._closed, self._tally
        seconds = after.at - before.at
        cpu_s = None
        if before.participant_s is not None and after.participant_s is not None:
            cpu_s = after.participant_s - before.participant_s
        stub_s = after.stub_s - before.stub_s
        load_s = after.load_s - before.load_s
        if self._phase.driver_pid is not None:
            ours_s = after.driver_s - before.driver_s  # it has started all the others
        else:
            ours_s = (cpu_s or 0.0) + stub_s + load_s
        foreign_s = max(0.0, after.machine_s - before.machine_s - ours_s)
        return Result(
            window_s=seconds,
            num_tokens=tally.num_tokens,
            num_streams=tally.num_streams,
            num_plain=tally.num_plain,
            num_sent=tally.num_sent,
            num_retries=tally.num_retries,
            num_connects=num_connects,
            failures=dict(tally.failures),
            cpu_s=cpu_s,
            load_cpu_share=load_s / seconds,
            stub_cpu_share=stub_s / seconds if self._phase.stub_pid is not None else None,
            foreign_cpu_share=foreign_s / seconds if self._phase.stub_pid is not None else None,
            ttfts_s=tuple(round(value, 6) for value in tally.ttfts_s),
            quantiles={
                name: quantiles(values)
                for name, values in (
                    ("delay_s", tally.delays_s),
                    ("itl_s", tally.itls_s),
                    ("ttft_s", tally.ttfts_s),
                    ("lag_s", tally.lags_s),
                )
                if len(values)
            },
        )

    def _read(self) -> _Meters:
        phase = self._phase
        return _Meters(
            now(),
            procs.cpu_s(phase.root_pid) if phase.root_pid is not None else None,
            procs.cpu_s(phase.stub_pid) if phase.stub_pid is not None else 0.0,
            process_time(),
            procs.cpu_s(phase.driver_pid) if phase.driver_pid is not None else 0.0,
            procs.machine_busy_s(),
        )


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Number, mean, and order statistics interpolated linearly; microsecond resolution."""
    ordered = sorted(values)
    found = {"n": float(len(ordered)), "mean": round(sum(ordered) / len(ordered), 7)}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        position = share * (len(ordered) - 1)
        below = int(position)
        above = min(below + 1, len(ordered) - 1)
        found[name] = round(ordered[below] + (ordered[above] - ordered[below]) * (position - below), 7)
    return found
