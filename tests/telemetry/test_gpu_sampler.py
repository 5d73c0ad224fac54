"""The sampler: intervals, fallbacks, hangs (field case F55 g2)."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from llm_runtime.telemetry.gpu import NvidiaSmiSampler
from llm_runtime.telemetry.gpu_readers import NvidiaSmiReader
from llm_runtime.telemetry.gpu_reading import Gpu, GpuReading, GpuUnavailable
from tests.telemetry.smi import gone


class ScriptedReader:
    """Gives what the test prepared; can be held like a driver that hangs."""

    source = "nvml"

    def __init__(self, *results: tuple[Gpu, ...] | Exception) -> None:
        self.results = list(results)
        self.gate = threading.Event()
        self.gate.set()
        self.num_reads = 0
        self.closed = False

    def read(self) -> tuple[Gpu, ...]:
        self.num_reads += 1
        self.gate.wait(20)
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        self.closed = True


class Readings:
    """Collects readings and lets a test wait for a number of them."""

    def __init__(self) -> None:
        self.seen: list[GpuReading] = []
        self._changed = asyncio.Event()

    def __call__(self, reading: GpuReading) -> None:
        self.seen.append(reading)
        self._changed.set()

    async def wait(self, number: int) -> None:
        async with asyncio.timeout(10):
            while len(self.seen) < number:
                self._changed.clear()
                await self._changed.wait()


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_readings_come_at_intervals_and_the_last_one_is_served() -> None:
    readings = Readings()
    reader = ScriptedReader(
        (Gpu(0, utilization_pct=1),), GpuUnavailable("gone"), (Gpu(0, utilization_pct=3),)
    )
    sampler = NvidiaSmiSampler(0.001, [reader], on_reading=readings)
    assert sampler.snapshot()["reason"] == "not read yet"
    task = asyncio.create_task(sampler.run())
    await readings.wait(3)
    assert [reading.status for reading in readings.seen[:3]] == ["available", "unavailable", "available"]
    assert sampler.snapshot()["utilization_pct"] == 3
    await cancel(task)
    assert reader.closed


async def test_the_second_source_is_asked_where_the_first_has_nothing() -> None:
    fallback = ScriptedReader((Gpu(0),))
    fallback.source = "nvidia-smi"
    readings = Readings()
    sampler = NvidiaSmiSampler(60, [ScriptedReader(GpuUnavailable("no NVML")), fallback], on_reading=readings)
    task = asyncio.create_task(sampler.run())
    await readings.wait(1)
    assert (sampler.latest.status, sampler.latest.source) == ("available", "nvidia-smi")
    await cancel(task)


async def test_a_driver_that_hangs_blocks_neither_the_loop_nor_further_scrapes() -> None:
    readings = Readings()
    reader = ScriptedReader((Gpu(0),))
    reader.gate.clear()
    sampler = NvidiaSmiSampler(0.001, [reader], driver_timeout_s=0.02, on_reading=readings)
    task = asyncio.create_task(sampler.run())
    await readings.wait(1)
    assert sampler.latest.reason == "the GPU driver does not answer"
    for _ in range(200):
        await asyncio.sleep(0)
    assert reader.num_reads == 1, "a second thread was sent after the one that hangs"
    reader.gate.set()
    await readings.wait(2)
    assert sampler.latest.available
    await cancel(task)


async def test_f55_g2_the_loop_goes_on_while_the_program_hangs(program: Any) -> None:
    program("exec sleep 30")
    readings = Readings()
    sampler = NvidiaSmiSampler(60, [NvidiaSmiReader(timeout_s=0.3)], on_reading=readings)
    task = asyncio.create_task(sampler.run())
    num_turns = 0
    while not readings.seen:
        await asyncio.sleep(0.001)
        num_turns += 1
    assert num_turns > 10
    assert "did not end" in (sampler.latest.reason or "")
    await cancel(task)


async def test_cancelling_in_the_middle_of_a_reading_leaves_no_program(program: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    program(f"echo $$ > {tmp_path}/started\nexec sleep 30")
    sampler = NvidiaSmiSampler(60, [NvidiaSmiReader(timeout_s=20)])
    task = asyncio.create_task(sampler.run())
    pid = int(await asyncio.to_thread((tmp_path / "started").read_text))
    await cancel(task)
    await asyncio.to_thread(_join_readers)
    assert gone(pid)
    assert "gpu-reading" not in [thread.name for thread in threading.enumerate()]


def _join_readers() -> None:
    for thread in threading.enumerate():
        if thread.name == "gpu-reading":
            thread.join(10)


async def test_a_bug_in_a_reader_is_not_hidden() -> None:
    sampler = NvidiaSmiSampler(60, [ScriptedReader(ZeroDivisionError("bug"))])
    with pytest.raises(ZeroDivisionError):
        await sampler.run()


async def test_switched_off_reads_nothing_and_says_so() -> None:
    reader = ScriptedReader((Gpu(0),))
    sampler = NvidiaSmiSampler(0, [reader])
    assert not sampler.enabled
    task = asyncio.create_task(sampler.run())
    await asyncio.sleep(0)
    assert reader.num_reads == 0
    assert sampler.snapshot()["reason"] == "GPU telemetry is switched off"
    await cancel(task)


def test_failures_are_tried_again_more_and_more_rarely() -> None:
    assert [pause for pause, _ in zip(_pauses(5.0), range(6), strict=False)] == [10, 20, 40, 60, 60, 60]
    assert next(_pauses(300.0)) == 300


def _pauses(interval_s: float) -> Any:
    sampler = NvidiaSmiSampler(interval_s, [ScriptedReader(GpuUnavailable("no"))])
    pause_s = interval_s
    while True:
        pause_s = sampler.pause_after(pause_s)
        yield pause_s
