"""A runtime around scripted engines, without a server: requests are played the way the API plays them."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from llm_runtime.admission.base import AdmissionPolicy
from llm_runtime.admission.controller import AdmissionController
from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.request import EndpointKind, RuntimeRequest, TimeLimits
from llm_runtime.engines.base import Finished
from llm_runtime.routing.breaker import BreakerRules
from llm_runtime.routing.config import RoutingConfig
from llm_runtime.routing.policies.least_load import LeastLoad
from llm_runtime.routing.router import Router
from llm_runtime.runtime.config import LimitsConfig
from llm_runtime.runtime.dispatcher import Dispatcher
from llm_runtime.runtime.handles import CompletionHandle
from llm_runtime.runtime.pools import Pool
from llm_runtime.runtime.replica import Replica
from llm_runtime.runtime.request_handle import RequestHandle
from llm_runtime.runtime.runtime import Runtime
from llm_runtime.scheduling.base import Scheduler
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.engines.virtual_time import LoopClock, run_virtual
from tests.support.recorder import Recorder
from tests.support.scripted import MODEL, ScriptedBackend

VIRTUAL_PATIENCE_S = 1e5
VIRTUAL_LIMIT_S = 2e5
_serial = itertools.count()


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs an async test in virtual time: its seconds cost nothing and are exact."""

    async def limited() -> None:
        async with asyncio.timeout(VIRTUAL_LIMIT_S):
            await test()

    @functools.wraps(test)
    def run() -> None:
        run_virtual(limited())

    # pytest looks through the wrapping, and would run the coroutine function by itself.
    del run.__wrapped__
    return run


@dataclass
class Client:
    """What one client got. `handle`: once it is submitted. gate: while cleared, the client does not
    read, and its writer is blocked in a send."""

    request: RuntimeRequest
    handle: RequestHandle | None = None
    received: list[bytes] = field(default_factory=list)
    num_comments: int = 0
    error: BaseException | None = None
    complete: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    got_some: asyncio.Event = field(default_factory=asyncio.Event)

    def leave(self) -> None:
        assert self.handle is not None
        self.handle.client_gone()


@dataclass
class Rig:
    runtime: Runtime
    recorder: Recorder
    clock: Clock
    backends: Sequence[ScriptedBackend]
    group: asyncio.TaskGroup

    @property
    def backend(self) -> ScriptedBackend:
        return self.backends[0]

    @property
    def dispatcher(self) -> Dispatcher:
        return self.runtime.pools[0].dispatcher

    @property
    def num_taken_slots(self) -> int:
        return sum(replica.num_taken for replica in self.dispatcher.replicas.values())

    def request(self, request_id: str | None = None, **fields: Any) -> RuntimeRequest:
        """A stream, unless told otherwise; without limits of time, unless told otherwise."""
        fields.setdefault("stream", True)
        fields.setdefault("limits", TimeLimits(request_s=None, idle_s=None))
        return RuntimeRequest(
            id=request_id or f"r{next(_serial)}",
            model=MODEL,
            kind=EndpointKind.CHAT,
            body={"messages": [{"role": "user", "content": "hi"}]},
            arrived_at=self.clock.now(),
            created=1,
            max_tokens=16,
            **fields,
        )

    def play(self, request: RuntimeRequest) -> tuple[Client, asyncio.Task[None]]:
        """Submits it in a task of its own, as an ASGI task would."""
        client = Client(request)
        client.gate.set()
        return client, self.group.create_task(self._play(client), name=request.id)

    async def _play(self, client: Client) -> None:
        request = client.request
        try:
            permit = await self.runtime.admit(request)
            with self.runtime.submit(request, permit) as client.handle:
                if isinstance(client.handle, CompletionHandle):
                    client.received.append(await client.handle.result())
                    await client.gate.wait()
                else:
                    await _read_stream(client, client.handle)
                client.complete = True
        except LLMRuntimeError as error:
            client.error = error
        finally:
            client.got_some.set()


async def _read_stream(client: Client, handle: RequestHandle) -> None:
    """As `web.stream.StreamWriter` does it, with a gate for a socket."""
    while True:
        item = await handle.pull()
        if isinstance(item, Finished):
            return
        if not item:
            if handle.keep_alive_due:
                handle.keep_alive_due = False
                client.num_comments += 1
                client.got_some.set()
            continue
        await client.gate.wait()
        client.received.append(item)
        client.got_some.set()
        if handle.finished is not None:
            return


@asynccontextmanager
async def rig(
    *backends: ScriptedBackend,
    limits: LimitsConfig | None = None,
    scheduler: Scheduler | None = None,
    identity: Sequence[AdmissionPolicy] = (),
    capacity: Sequence[AdmissionPolicy] = (),
    cancel_timeout_s: float = 10.0,
    routing: RoutingConfig | None = None,
    rules: BreakerRules | None = None,
) -> AsyncIterator[Rig]:
    """Started; everything in it has ended when the block is left, each request exactly once. rules: of
    every replica's breaker."""
    clock, recorder = LoopClock(), Recorder()
    engines = backends or (ScriptedBackend(clock=clock),)
    for listener in (recorder, *engines):
        listener.patience_s = VIRTUAL_PATIENCE_S
    for engine in engines:
        engine.clock = clock
    dispatcher = Dispatcher(
        [Replica(f"{engine.info.name}-{number}", engine, rules) for number, engine in enumerate(engines)],
        scheduler or build_scheduler(SchedulingConfig(max_batch_size=8)),
        Router(LeastLoad(), random.Random(1)),
        events=recorder,
        clock=clock,
        cancel_timeout_s=cancel_timeout_s,
        routing=routing or RoutingConfig(),
    )
    runtime = Runtime(
        [Pool(MODEL, frozenset({EndpointKind.CHAT}), dispatcher)],
        AdmissionController(identity, capacity),
        events=recorder,
        clock=clock,
        limits=limits or LimitsConfig(),
    )
    await runtime.start()
    await asyncio.sleep(0)
    async with asyncio.TaskGroup() as group:
        yield Rig(runtime, recorder, clock, engines, group)
        await runtime.aclose()
    assert runtime.num_active == 0
    assert all(replica.num_taken == 0 for replica in dispatcher.replicas.values())
    recorder.assert_settled_once()
