"""The simulator against what it simulates: the same load through the real runtime and the mock engine, on a
loop whose time is virtual, must end at the same instants.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import pytest

from llm_runtime.admission.config import AdmissionConfig
from llm_runtime.admission.controller import AdmissionController
from llm_runtime.bench.sim.config import ReplicaConfig, SimConfig, StaticModel
from llm_runtime.bench.sim.curve import constant
from llm_runtime.bench.sim.feed import OpenFeed
from llm_runtime.bench.sim.job import Ask
from llm_runtime.bench.sim.policies import Gates, Policies, capacity_gate, scheduled
from llm_runtime.bench.sim.returns import ReturningFeed
from llm_runtime.bench.sim.simulation import simulate
from llm_runtime.core.errors import LLMRuntimeError, Rejected
from llm_runtime.core.events import NullEvents
from llm_runtime.core.outcome import RequestRecord
from llm_runtime.core.request import EndpointKind, RuntimeRequest, TimeLimits
from llm_runtime.engines.config import MockConfig
from llm_runtime.engines.mock import MockBackend
from llm_runtime.routing.policies.least_load import LeastLoad
from llm_runtime.routing.router import Router
from llm_runtime.runtime.config import LimitsConfig
from llm_runtime.runtime.dispatcher import Dispatcher
from llm_runtime.runtime.handles import StreamingHandle
from llm_runtime.runtime.pools import Pool
from llm_runtime.runtime.replica import Replica
from llm_runtime.runtime.runtime import Runtime
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.engines.virtual_time import LoopClock, run_virtual

SLOTS = 4
ENGINE = StaticModel(num_slots=SLOTS, step_s=constant(0.010), prefill_s=0.025)
QUEUE_S = 1.5


@dataclass(frozen=True)
class Seen:
    """Instants since the load's start, None where they never came; reason: of a failure; told_s: when to
    return."""

    dispatched_at: float | None
    first_token_at: float | None
    finished_at: float | None
    reason: str | None
    told_s: float | None = None


def make_asks(seed: int, num_requests: int, rate: float) -> list[Ask]:
    source = random.Random(seed)
    at, asks = 0.0, []
    for number in range(num_requests):
        at += source.expovariate(rate)
        output = source.randint(1, 20)
        limits = TimeLimits(queue_s=QUEUE_S, request_s=None, idle_s=None)
        priority = source.choice([2, 5, 8])
        asks.append(Ask(number, at, 10, output, output, priority=priority, limits=limits))
    return asks


def really(
    asks: list[Ask],
    config: SchedulingConfig,
    *,
    num_replicas: int,
    gates: Callable[[], Gates],
    tries: int = 1,
) -> dict[tuple[int, int], Seen]:
    """By number of the ask and of the try, 0 first; who is refused comes back when told, `tries` in all."""

    async def scenario() -> dict[tuple[int, int], Seen]:
        clock = LoopClock()
        backends = [
            MockBackend(MockConfig(25.0, 10.0), model="m", num_slots=SLOTS, model_created=0, clock=clock)
            for _ in range(num_replicas)
        ]
        dispatcher = Dispatcher(
            [Replica(f"r{number}", backend) for number, backend in enumerate(backends)],
            build_scheduler(config),
            Router(LeastLoad(), random.Random("router:0")),
            events=NullEvents(),
            clock=clock,
            cancel_timeout_s=10.0,
        )
        runtime = Runtime(
            [Pool("m", frozenset({EndpointKind.CHAT}), dispatcher)],
            gates().controller or AdmissionController((), ()),
            events=NullEvents(),
            clock=clock,
            limits=LimitsConfig(),
        )
        records: dict[str, RequestRecord] = {}

        def settled(record: RequestRecord) -> None:
            records[record.request.id] = record

        runtime.on_settled = settled
        await runtime.start()
        await asyncio.sleep(0)
        began_at = clock.now()
        seen: dict[tuple[int, int], Seen] = {}

        async def play(ask: Ask) -> None:
            await asyncio.sleep(ask.at_s)
            for attempt in range(tries):
                seen[ask.number, attempt] = found = await once(ask, attempt)
                if found.told_s is None:
                    return
                await asyncio.sleep(found.told_s)

        async def once(ask: Ask, attempt: int) -> Seen:
            request = _request(ask, attempt, clock.now())
            try:
                handle = runtime.submit(request, await runtime.admit(request))
                assert isinstance(handle, StreamingHandle)
                with handle:
                    while handle.finished is None:
                        await handle.pull()
            except LLMRuntimeError as error:
                record = records.get(request.id)
                ended_at = record.timeline.finished_at if record else clock.now()
                told_s = error.retry_after_s if isinstance(error, Rejected) else None
                return replace(_seen(None, None, ended_at, error.reason, began_at), told_s=told_s)
            timeline = records[request.id].timeline
            return _seen(
                timeline.dispatched_at, timeline.first_token_at, timeline.finished_at, None, began_at
            )

        async with asyncio.TaskGroup() as group:
            for ask in asks:
                group.create_task(play(ask))
        await runtime.aclose()
        return seen

    return run_virtual(scenario())


def _request(ask: Ask, attempt: int, now: float) -> RuntimeRequest:
    return RuntimeRequest(
        id=f"{ask.number}.{attempt}",
        model="m",
        kind=EndpointKind.CHAT,
        body={"messages": [{"role": "user", "content": 40 * "x"}], "ignore_eos": True},
        arrived_at=now,
        created=0,
        stream=True,
        priority=ask.priority,
        limits=ask.limits,
        num_prompt_tokens=ask.prompt_tokens,
        max_tokens=ask.max_tokens,
        fingerprint=1 + ask.number,
        num_retries=attempt or None,
    )


def _seen(
    dispatched: float | None, first: float | None, ended: float | None, reason: str | None, origin: float
) -> Seen:
    def since(at: float | None) -> float | None:
        return None if at is None else at - origin

    return Seen(since(dispatched), since(first), since(ended), reason)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("config", "num_replicas", "max_queue_size", "rate"),
    [
        (SchedulingConfig(max_batch_size=SLOTS), 1, None, 15.0),
        (SchedulingConfig(max_batch_size=SLOTS), 1, None, 40.0),
        (SchedulingConfig(enable_batching=False), 1, 3, 10.0),
        (SchedulingConfig(policy="priority", max_batch_size=2), 1, 10, 30.0),
        (
            SchedulingConfig(policy="priority", priority_aging_boost_interval_s=0.2, max_batch_size=SLOTS),
            2, 20, 80.0,
        ),
    ],
)  # fmt: skip
def test_the_simulation_ends_every_request_when_the_runtime_does(
    config: SchedulingConfig, num_replicas: int, max_queue_size: int | None, rate: float, seed: int
) -> None:
    asks = make_asks(seed, 150, rate)
    gates = (
        Gates
        if max_queue_size is None
        else partial(capacity_gate, AdmissionConfig(max_queue_size=max_queue_size))
    )
    policies = Policies(scheduled(config).scheduler, gates=gates)
    simulated = simulate(SimConfig((ReplicaConfig(ENGINE),) * num_replicas), OpenFeed(asks), policies)
    real = really(asks, config, num_replicas=num_replicas, gates=gates)
    assert len(real) == len(asks)
    reasons = set()
    for job in simulated.jobs:
        expected = real[job.ask.number, 0]
        reason = None if job.error is None else job.error.reason
        assert reason == expected.reason
        assert job.finished_at == pytest.approx(expected.finished_at, abs=1e-6)
        if reason is None:
            assert job.dispatched_at == pytest.approx(expected.dispatched_at, abs=1e-6)
            assert job.first_token_at == pytest.approx(expected.first_token_at, abs=1e-6)
        reasons.add(reason)
    assert None in reasons
    if rate > 15 or max_queue_size is not None:
        assert len(reasons) > 1, "the load was too light to try refusals and evictions"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_refusals_tell_the_same_and_keep_it_alike(num_replicas: int, seed: int) -> None:
    """Clients that have 0.6 s and come back when told: every forecast, place and promise shows in this."""
    asks = [
        replace(ask, limits=TimeLimits(request_s=0.6, idle_s=None))
        for ask in make_asks(seed, 300, 40.0 * num_replicas)
    ]
    config = SchedulingConfig(max_batch_size=SLOTS)
    gates = partial(capacity_gate, AdmissionConfig())
    feed = ReturningFeed(asks, tries=3, wait_s=lambda number: math.inf)
    pool = SimConfig((ReplicaConfig(ENGINE),) * num_replicas)
    simulated = simulate(pool, feed, Policies(scheduled(config).scheduler, gates=gates))
    real = really(asks, config, num_replicas=num_replicas, gates=gates, tries=3)
    assert len(real) == len(simulated.jobs)
    refused = returned = 0
    for job in simulated.jobs:
        number, attempt = job.request.fingerprint - 1, job.ask.num_retries or 0
        expected = real[number, attempt]
        assert (None if job.error is None else job.error.reason) == expected.reason
        assert job.finished_at == pytest.approx(expected.finished_at, abs=1e-6)
        if isinstance(job.error, Rejected):
            assert job.error.retry_after_s == pytest.approx(expected.told_s, abs=1e-6)
            refused += 1
        else:
            returned += attempt > 0
    assert refused > 50
    assert returned > 20


def test_instants_are_those_of_the_load() -> None:
    """Guards the guard: a load of which nothing waits would compare little."""
    asks = make_asks(0, 150, 40.0)
    result = simulate(
        SimConfig((ReplicaConfig(ENGINE),)), OpenFeed(asks), scheduled(SchedulingConfig(max_batch_size=SLOTS))
    )
    waits = [job.queue_wait_s for job in result.jobs if job.queue_wait_s is not None]
    assert max(waits) > 0.5
    assert all(later.ask.at_s >= earlier.ask.at_s for earlier, later in pairwise(result.jobs))
