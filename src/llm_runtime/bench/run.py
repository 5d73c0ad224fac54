"""One run from plan to result: warm-up, load, drain, with everything a summary needs beside it."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from llm_runtime.bench import clock, config, facts
from llm_runtime.bench.bodies import BodyWriter
from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Replay
from llm_runtime.bench.driver import Driver, window_of
from llm_runtime.bench.lag import LagProbe
from llm_runtime.bench.ledger import Window
from llm_runtime.bench.prompts import PromptWriter
from llm_runtime.bench.records import RequestRecord
from llm_runtime.bench.sampler import Sample, Sampler, fetch_page, means_between
from llm_runtime.bench.stats import require_numpy
from llm_runtime.bench.traces import load_trace
from llm_runtime.bench.workload import SessionSource, SyntheticSessions, TraceSessions
from llm_runtime.core.errors import BackendError, LLMRuntimeError

MAX_WARMUP_CONCURRENCY = 8
WITHOUT_USAGE = (
    "the server does not report usage, so tokens are unknown; --allow-estimates counts events instead "
    "and marks every figure made from them"
)


class Interrupted(LLMRuntimeError):
    """The user stopped before anything was measured."""

    reason = "interrupted"


class Watcher(Protocol):
    """Shows a run while it lasts; runs as a task of the run and must be cheap."""

    async def watch(self, driver: Driver) -> None:
        """Until cancelled."""
        ...


class Interrupt:
    """How a user's wish to stop reaches whatever runs at the moment. `request` is a signal handler's."""

    def __init__(self) -> None:
        self.requested = False
        self._stop: Callable[[], object] | None = None

    def request(self) -> None:
        self.requested = True
        if self._stop is not None:
            self._stop()

    def reaches(self, stop: Callable[[], object]) -> None:
        """From now on this is what is to be stopped."""
        self._stop = stop
        if self.requested:
            stop()


@dataclass(frozen=True, slots=True)
class RunResult:
    """What was measured. Durations in seconds, instants since the load's start; started_at: Unix time.

    load_end_s: when the last request had become due. cpu_s: of this process, from the load's start
    to its end. interrupted: by the user. server_means: of what the server counted during the load.
    """

    plan: Plan
    model: str
    salt: str
    records: Sequence[RequestRecord]
    window: Window
    load_end_s: float
    end_s: float
    cpu_s: float
    lags_s: Sequence[float]
    started_at: float
    interrupted: bool
    samples: Sequence[Sample] = ()
    server_means: dict[str, float] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    trace: dict[str, Any] | None = None
    num_connects: int = 0
    num_retries: int = 0
    num_abandoned_turns: int = 0
    num_without_usage: int = 0


@dataclass(frozen=True, slots=True)
class _Source:
    sessions: SessionSource
    trace: dict[str, Any] | None = None


async def run(plan: Plan, watcher: Watcher | None = None, interrupt: Interrupt | None = None) -> RunResult:
    """Raises ConfigError for a plan that cannot be run, BackendError when the server cannot be
    used at all (nobody listens, no model, every warm-up fails), Interrupted when stopped before the
    load. Whatever happens under load is in the result instead.
    """
    config.check(plan)
    require_numpy()
    clock.allow_many_connections()
    interrupt = interrupt or Interrupt()
    salt = plan.salt or secrets.token_hex(8)
    source, environment = await asyncio.gather(
        asyncio.to_thread(_source, plan), asyncio.to_thread(facts.environment)
    )
    async with LoadClient(plan.target) as client:
        model = plan.target.model or await client.first_model()
        await _warm_up(plan, client, _bodies(plan, model, f"{salt}:warm-up"), source.sessions, interrupt)
        before, page = await facts.server_facts(client), await fetch_page(client)
        beside = await facts.versions_beside(plan.metrics_urls)
        driver = Driver(plan, client, _bodies(plan, model, salt), source.sessions)
        interrupt.reaches(driver.stop)
        load = await _load(driver, watcher)
        after, means = await facts.server_facts(client), means_between(page, await fetch_page(client))
        return RunResult(
            plan=plan,
            model=model,
            salt=salt,
            records=driver.ledger.records,
            window=window_of(plan.limits),
            load_end_s=load.end_s if driver.load_end_s is None else driver.load_end_s,
            end_s=load.end_s,
            cpu_s=load.cpu_s,
            lags_s=load.lags_s,
            started_at=load.started_at,
            interrupted=interrupt.requested,
            samples=load.samples,
            server_means=means,
            server={"before": before, "after": after, "beside": beside},
            environment=environment,
            trace=source.trace,
            num_connects=client.num_connects,
            num_retries=client.num_retries,
            num_abandoned_turns=driver.num_abandoned_turns,
            num_without_usage=driver.ledger.num_without_usage,
        )


@dataclass(frozen=True, slots=True)
class _Load:
    end_s: float
    cpu_s: float
    started_at: float
    lags_s: list[float]
    samples: list[Sample]


async def _load(driver: Driver, watcher: Watcher | None) -> _Load:
    """The load itself, with what looks on beside it."""
    plan = driver.plan
    sampler = Sampler(plan.target, plan.metrics_urls, plan.sample_interval_s)
    with clock.quiet_collector():
        beside = [sampler.run(clock.now()), *([watcher.watch(driver)] if watcher else ())]
        probe = LagProbe(driver.timers)
        started_at, cpu_s = time.time(), time.process_time()
        try:
            async with _accompanied(*beside):
                await driver.run()
                end_s, cpu_s = clock.now() - driver.origin, time.process_time() - cpu_s
        finally:
            probe.stop()
    return _Load(end_s, cpu_s, started_at, probe.lags_s, sampler.samples)


@asynccontextmanager
async def _accompanied(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs them as tasks until the block ends; an exception in one ends the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in coroutines]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _warm_up(
    plan: Plan, client: LoadClient, bodies: BodyWriter, source: SessionSource, interrupt: Interrupt
) -> None:
    """Sends requests like the first ones, with other words, and forgets them."""
    number = plan.limits.warmup_requests
    if number > 0:
        load, most = plan.load, MAX_WARMUP_CONCURRENCY
        concurrency = min(number, load.concurrency if isinstance(load, ClosedLoop) else most)
        rehearsal = replace(plan, load=ClosedLoop(concurrency), limits=Limits(requests=number))
        driver = Driver(rehearsal, client, bodies, source)
        interrupt.reaches(driver.stop)
        await driver.run()
        ledger = driver.ledger
        if ledger.num_without_usage and not plan.allow_estimates:
            raise BackendError(WITHOUT_USAGE)
        if not interrupt.requested and not ledger.num_completed:
            raise BackendError(f"no warm-up request was answered: {ledger.last_error}")
    if interrupt.requested:
        raise Interrupted("stopped before the load began")


def _bodies(plan: Plan, model: str, salt: str) -> BodyWriter:
    return BodyWriter(plan.target, model, PromptWriter(salt, plan.tokens_per_word))


def _source(plan: Plan) -> _Source:
    load = plan.load
    if not isinstance(load, Replay):
        return _Source(SyntheticSessions(plan.traffic, plan.seed))
    entries = load_trace(load.trace, plan.seed)
    path = Path(load.trace.path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    trace = {
        "name": path.name,
        "sha256": digest,
        "num_requests": len(entries),
        "last_due_s": entries[-1].at_s,
    }
    return _Source(TraceSessions(entries, plan.traffic[0]), trace)
