"""`Supervisor` over engines that do as the test says, and over real programs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llm_runtime.core.errors import BackendUnavailable, ConfigError, LLMRuntimeError
from llm_runtime.engines.base import BackendState as S
from llm_runtime.engines.base import BackendStatus
from llm_runtime.engines.config import SupervisionConfig
from llm_runtime.engines.process import EngineProcess, ExitReport, ProcessSpec
from llm_runtime.engines.supervisor import Launch, Supervisor
from tests.engines.processes import cleaned_up, linux_only, program, wait_ended

CONFIG = SupervisionConfig(
    restart_backoff_s=0.001, restart_backoff_max_s=0.002, max_restarts=3, stop_grace_s=0.2
)
FAR = SupervisionConfig(restart_backoff_s=3600, restart_backoff_max_s=3600)


class FakeEngine:
    def __init__(self) -> None:
        self.ended: asyncio.Future[ExitReport] = asyncio.get_running_loop().create_future()
        self.stopped_with: float | None = None
        self.dies_at_once = True
        self.num_kills = 0

    def end(self, code: int) -> None:
        self.ended.set_result(ExitReport("fake", code, ("last words",)))

    async def wait(self) -> ExitReport:
        return await asyncio.shield(self.ended)

    async def stop(self, grace_s: float | None = None) -> ExitReport:
        self.stopped_with = grace_s
        if not self.ended.done():
            self.end(143)
        return await self.ended

    def kill(self) -> None:
        self.num_kills += 1
        if self.dies_at_once:
            self.end(137)


class Launches:
    """Answers each launch with the next of what the test prepared; waits when there is none."""

    def __init__(self, *prepared: FakeEngine | LLMRuntimeError) -> None:
        self.prepared = list(prepared)
        self.count = 0
        self.cancelled = False

    async def __call__(self) -> FakeEngine:
        self.count += 1
        if not self.prepared:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        result = self.prepared.pop(0)
        if isinstance(result, LLMRuntimeError):
            raise result
        return result


class Watched:
    """A running supervisor and the states it went through."""

    def __init__(self, launches: Launch, config: SupervisionConfig = CONFIG) -> None:
        self.seen: list[BackendStatus] = []
        self._changed = asyncio.Event()
        self.supervisor = Supervisor(launches, config, self._on_change, chance=lambda: 1.0)
        self.task = asyncio.create_task(self.supervisor.run())

    def _on_change(self, status: BackendStatus) -> None:
        self.seen.append(status)
        self._changed.set()

    @property
    def states(self) -> list[S]:
        return [status.state for status in self.seen]

    async def until(self, state: S, count: int = 1) -> BackendStatus:
        async with asyncio.timeout(10):
            while self.states.count(state) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.seen[-1]

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@contextlib.asynccontextmanager
async def watched(launches: Launch, config: SupervisionConfig = CONFIG) -> AsyncIterator[Watched]:
    it = Watched(launches, config)
    try:
        yield it
    finally:
        await it.stop()


async def test_life_and_polite_end() -> None:
    engine = FakeEngine()
    async with watched(Launches(engine)) as it:
        await it.supervisor.wait_ready()
        await it.supervisor.wait_ready()  # returns at once when ready
        it.supervisor.drain()
        await it.stop()
        assert it.states == [S.STARTING, S.READY, S.DRAINING, S.STOPPED]
        assert engine.stopped_with == CONFIG.stop_grace_s


async def test_crash_is_followed_by_a_new_start() -> None:
    first, second = FakeEngine(), FakeEngine()
    async with watched(Launches(first, second)) as it:
        await it.until(S.READY)
        first.end(1)
        await it.until(S.READY, 2)
        assert it.states == [S.STARTING, S.READY, S.CRASHED, S.STARTING, S.READY]
        assert it.seen[2].reason == "the fake engine exited with code 1"
        assert it.supervisor.num_restarts == 1
        assert it.supervisor.last_error is not None
        assert it.supervisor.last_error.__notes__ == ["the fake engine exited with code 1\nlast words"]


async def test_crash_loop_ends_in_failed_and_a_later_start_recovers() -> None:
    failures = [BackendUnavailable(f"failure {number}") for number in range(4)]
    launches = Launches(*failures, FakeEngine())
    async with watched(launches) as it:
        with pytest.raises(BackendUnavailable, match="failure 0"):
            await it.supervisor.wait_ready()
        failed = await it.until(S.FAILED)
        assert failed.reason == "failure 3; given up after 4 attempts"
        assert launches.count == 4
        with pytest.raises(BackendUnavailable, match="failure 3"):
            await it.supervisor.wait_ready()
        it.supervisor.start_again()
        await it.until(S.READY)
        assert it.supervisor.status == BackendStatus(S.READY)


async def test_configuration_error_is_told_and_not_retried() -> None:
    launches = Launches(ConfigError("no such model"))
    async with watched(launches) as it:
        with pytest.raises(ConfigError):
            await it.supervisor.wait_ready()
        assert it.states == [S.STARTING, S.FAILED]
        assert launches.count == 1


async def test_pause_can_be_cut_short() -> None:
    async with watched(Launches(BackendUnavailable("x"), FakeEngine()), FAR) as it:
        await it.until(S.CRASHED)
        it.supervisor.start_again()
        await it.until(S.READY)


async def test_hanging_engine_is_restarted_for_the_given_reason() -> None:
    async with watched(Launches(FakeEngine(), FakeEngine())) as it:
        await it.until(S.READY)
        it.supervisor.restart("no progress for 60 s")
        it.supervisor.restart("again")  # one verdict is enough
        await it.until(S.READY, 2)
        assert it.seen[2] == BackendStatus(S.CRASHED, "no progress for 60 s")


async def test_a_hanging_engine_is_out_of_service_before_it_is_dead() -> None:
    stubborn = FakeEngine()
    stubborn.dies_at_once = False
    launches = Launches(stubborn, FakeEngine())
    async with watched(launches) as it:
        await it.until(S.READY)
        it.supervisor.restart("no progress")
        assert it.supervisor.status == BackendStatus(S.CRASHED, "no progress")
        assert stubborn.num_kills == 1
        it.supervisor.start_again()  # asked for too early: remembered
        await asyncio.sleep(0)
        assert launches.count == 1
        stubborn.end(137)
        await it.until(S.READY, 2)
        assert it.states == [S.STARTING, S.READY, S.CRASHED, S.STARTING, S.READY]
        assert it.supervisor.num_restarts == 1


async def test_a_draining_engine_that_hangs_is_not_started_again() -> None:
    launches = Launches(FakeEngine())
    async with watched(launches) as it:
        await it.until(S.READY)
        it.supervisor.drain()
        it.supervisor.restart("no progress")
        assert it.supervisor.status == BackendStatus(S.STOPPED, "no progress")
        it.supervisor.restart("again")
        assert launches.count == 1


async def test_stop_while_starting_cancels_the_start() -> None:
    launches = Launches()
    async with watched(launches) as it:
        await it.until(S.STARTING)
        await asyncio.sleep(0)
        waiting = asyncio.create_task(it.supervisor.wait_ready())
        await asyncio.sleep(0)
        await it.stop()
        with pytest.raises(BackendUnavailable, match="not running"):
            await waiting
        assert launches.cancelled
        assert it.states == [S.STARTING, S.STOPPED]


async def test_engine_that_ends_while_draining_is_not_started_again() -> None:
    engine = FakeEngine()
    launches = Launches(engine)
    async with watched(launches) as it:
        await it.until(S.READY)
        it.supervisor.drain()
        engine.end(0)
        await it.until(S.STOPPED)
        assert launches.count == 1


@linux_only
async def test_real_engine_killed_while_it_serves_comes_back(tmp_path: Path) -> None:
    families: list[list[int]] = []

    async def launch() -> EngineProcess:
        spec = ProcessSpec("test", program("family", "deaf"), dict(os.environ), tmp_path)
        process = await EngineProcess.start(spec)
        line = await process.wait_ready(lambda: process.output.line_with_prefix("["), 10)
        families.append(json.loads(line))
        return process

    async with watched(launch) as it:
        await it.until(S.READY)
        with cleaned_up(families[0]):
            os.kill(families[0][0], signal.SIGKILL)
            await it.until(S.READY, 2)
            assert it.seen[2].reason == "the test engine was ended by SIGKILL"
            assert await asyncio.to_thread(wait_ended, families[0], 1) == []
        with cleaned_up(families[1]):
            await it.stop()  # deaf: by force after the grace
            assert await asyncio.to_thread(wait_ended, families[1], 0) == []
    assert os.listdir(tmp_path) == []
