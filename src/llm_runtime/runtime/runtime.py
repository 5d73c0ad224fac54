"""`Runtime`: the one object behind the API. Owns pools, engines and supervised tasks; wires siblings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from llm_runtime.admission.base import NO_ROOM
from llm_runtime.admission.controller import AdmissionController, Permit
from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import (
    BackendUnavailable,
    Draining,
    InvalidRequest,
    LLMRuntimeError,
)
from llm_runtime.core.events import Events
from llm_runtime.core.outcome import RequestRecord
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.core.standing import Standing
from llm_runtime.engines.base import BackendState
from llm_runtime.runtime.config import LimitsConfig
from llm_runtime.runtime.dispatcher import Dispatcher
from llm_runtime.runtime.endings import charged
from llm_runtime.runtime.engine_life import EngineLife
from llm_runtime.runtime.handles import CompletionHandle, StreamingHandle
from llm_runtime.runtime.in_flight import InFlight
from llm_runtime.runtime.pools import ModelIndex, Pool
from llm_runtime.runtime.reminders import Reminders
from llm_runtime.runtime.request_handle import RequestHandle
from llm_runtime.runtime.supervise import TaskSupervisor, Work
from llm_runtime.wire.messages import refuse_parts

log = structlog.get_logger(__name__)

RETRY_WHILE_DRAINING_S: Final = 5.0

CONVERSATIONS: Final = frozenset({EndpointKind.CHAT, EndpointKind.TOKENIZE})
"""Endpoints whose `messages` are OpenAI's."""


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    reason: str | None = None


class Runtime:
    """Entered once by the application's lifespan; every other method runs on that loop's thread.

    Hooks, each called at most once but `on_settled`: `on_ready`, `on_fatal`.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        admission: AdmissionController,
        *,
        events: Events,
        clock: Clock,
        limits: LimitsConfig,
    ) -> None:
        self._pools = tuple(pools)
        self.index = ModelIndex(self._pools)
        self._admission = admission
        self._events = events
        self.on_settled: Callable[[RequestRecord], None] | None = None
        self.clock = clock
        self._now: Final = clock.now
        self.limits: Final = limits
        self._keep_alive_s: Final = limits.keep_alive_interval_s
        self._write_stall_s: Final = limits.write_stall_timeout_s
        self._in_flight = InFlight()
        self._reminders = Reminders(clock.now)
        self._drain_cut = asyncio.Event()
        self._supervisor = TaskSupervisor(self._fatal)
        self._background: dict[str, Work] = {}
        self.draining = False
        self.fatal_reason: str | None = None
        self.on_fatal: Callable[[], None] | None = None
        self.on_ready: Callable[[], None] | None = None
        for pool in self._pools:
            pool.dispatcher.on_failure = self._fatal

    # ---- life

    def add_background(self, name: str, work: Work) -> None:
        """A task that runs while the runtime does and is restarted if it dies. Before `start` only."""
        self._background[name] = work

    async def start(self) -> None:
        """Starts engines in the background: the API answers at once, readiness follows."""
        for name, work in self._background.items():
            self._supervisor.spawn(name, work, "restart")
        for pool in self._pools:
            for replica in pool.dispatcher.replicas.values():
                life = EngineLife(replica, self._events, partial(self._engine_changed, pool.dispatcher))
                self._supervisor.spawn(f"engine {replica.id}", life.run, "fatal")

    def _engine_changed(self, dispatcher: Dispatcher) -> None:
        self.index.refresh()
        if self.on_ready is not None and self.readiness().ready:
            announce, self.on_ready = self.on_ready, None
            announce()
        dispatcher.replica_changed()

    def _fatal(self, reason: str) -> None:
        """Something without which nothing works has died: say so everywhere and stop the process."""
        if self.fatal_reason is not None:
            return
        self.fatal_reason = reason
        self._stop_dispatching()
        self._in_flight.fail(lambda: BackendUnavailable("The server stops after an internal failure."))
        if self.on_fatal is not None:
            self.on_fatal()

    def begin_drain(self) -> None:
        """No new work from now on. Idempotent."""
        self.draining = True

    def end_drain(self) -> None:
        """Cuts `drained` short: what is in flight ends now."""
        self._drain_cut.set()

    async def drained(self) -> None:
        """Returns when nothing is in flight: by itself, or, after the drain limit or `end_drain`, with
        the rest ended by an error."""
        if not await self._in_flight.ended(self.limits.drain_timeout_s, unless=self._drain_cut):
            await self._end_all()

    async def _end_all(self) -> None:
        self._stop_dispatching()
        await self._in_flight.end(_draining)

    def _stop_dispatching(self) -> None:
        for pool in self._pools:
            pool.dispatcher.stop()

    async def aclose(self) -> None:
        """Ends everything in flight with an error, then stops engines and tasks. Idempotent."""
        self.draining = True
        await self._end_all()
        await self._supervisor.aclose()
        backends = [r.backend for pool in self._pools for r in pool.dispatcher.replicas.values()]
        results = await asyncio.gather(*(backend.aclose() for backend in backends), return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                log.error("engine.close_failed", exc_info=error)
        for pool in self._pools:
            pool.dispatcher.close()

    # ---- requests

    def unique_id(self, wanted: str) -> str:
        """`wanted`, or a variant of it while another request by that name is in flight, or in an engine
        that has not let go of it yet."""
        candidate, number = wanted, 1
        while self._is_taken(candidate):
            number += 1
            candidate = f"{wanted}-{number}"
        return candidate

    def _is_taken(self, request_id: str) -> bool:
        if request_id in self._in_flight.by_id:
            return True
        for pool in self._pools:  # noqa: SIM110 - without a generator: for every request
            if pool.dispatcher.holds(request_id):
                return True
        return False

    def pool_for(self, model: str, kind: EndpointKind) -> Pool:
        """Raises what `ModelIndex.find` raises."""
        return self.index.find(model, kind)

    def check(self, request: RuntimeRequest) -> None:
        """Raises InvalidRequest for what no replica of the model can do, before any limit is charged."""
        kind = request.kind
        pool = self.index.find(request.model, kind)
        if request.num_slots > 1 and request.num_slots > (most := pool.dispatcher.max_request_slots):
            raise InvalidRequest(
                f"The request needs {request.num_slots} sequences at once (choices times prompts), but "
                f"this model runs at most {most}.",
                param=_multiplier(request.body),
                reason="too_many_sequences",
            )
        if kind in CONVERSATIONS and (content_parts := pool.info.content_parts) is not None:
            refuse_parts(request.body.get("messages", ()), content_parts)
        for replica in pool.dispatcher.replicas.values():
            replica.backend.check(request)

    async def admit(self, request: RuntimeRequest) -> Permit:
        """The identity gate. Raises Rejected (counted)."""
        try:
            self._check_open()
            if not self._admission.asks_elsewhere:
                return self._admission.admit_identity(request, self._now())
            permit = await self._admission.admit(request, self._now())
            try:
                self._check_open()  # others may have closed it meanwhile
            except Draining:
                permit.rollback()
                raise
        except LLMRuntimeError as error:
            self._events.rejected(request, error)
            raise
        return permit

    def _check_open(self) -> None:
        if self.draining or self.fatal_reason is not None:
            raise _draining()

    async def standing(self, tenant: str) -> Standing | None:
        """How a tenant stands with its limits; None: it has none, or nobody can know."""
        return await self._admission.standing(tenant)

    def submit(self, request: RuntimeRequest, permit: Permit) -> RequestHandle:
        """The capacity gate, then a handle to enter (`async with`), which queues the request.

        Raises Rejected (counted), after which the permit is void. The permit is settled by the
        handle's exit; a handle must therefore be entered in the same step.
        """
        try:
            dispatcher = self.index.find(request.model, request.kind).dispatcher
            now = self._now()
            room = self._admission.admit_capacity(permit, request, dispatcher.load(request, now), now)
        except LLMRuntimeError as error:
            if permit.open:  # the model went while the limits were asked
                permit.rollback()
            self._events.rejected(request, error)
            raise
        if room is not NO_ROOM:
            dispatcher.make_room(room)
        self._events.accepted(request)
        clock, settle = self.clock, partial(self._settle, permit)
        keep_alive_s, write_stall_s = self._keep_alive_s, self._write_stall_s
        handle: RequestHandle  # made by two calls, which cost less than one of whichever class
        if request.stream:
            handle = StreamingHandle(
                request, dispatcher, clock=clock, settle=settle, reminders=self._reminders,
                keep_alive_s=keep_alive_s, write_stall_s=write_stall_s,
            )  # fmt: skip
        else:
            handle = CompletionHandle(
                request, dispatcher, clock=clock, settle=settle, reminders=self._reminders,
                keep_alive_s=keep_alive_s, write_stall_s=write_stall_s,
            )  # fmt: skip
        self._in_flight.add(handle)
        return handle

    def _settle(self, permit: Permit, record: RequestRecord) -> None:
        """The one end of a request. Total: what a policy makes of it cannot keep it in the books."""
        self._in_flight.discard(record.request.id)
        self._events.settled(record)
        try:
            permit.settle(charged(record))
            if self.on_settled is not None:
                self.on_settled(record)
        except Exception:
            log.exception("request.settle_failed", request_id=record.request.id)

    # ---- what operators and clients may ask

    @property
    def pools(self) -> tuple[Pool, ...]:
        return self._pools

    @property
    def models(self) -> Mapping[str, Pool]:
        return self.index.models

    @property
    def num_active(self) -> int:
        return len(self._in_flight)

    def readiness(self) -> Readiness:
        """Ready when every model has at least one engine that answered."""
        if self.fatal_reason is not None:
            return Readiness(False, self.fatal_reason)
        if self.draining:
            return Readiness(False, "draining")
        for pool in self._pools:
            statuses = [replica.status for replica in pool.dispatcher.replicas.values()]
            if not any(status.state is BackendState.READY for status in statuses):
                why = next((s.reason for s in statuses if s.reason), None)
                state = statuses[0].state.value
                return Readiness(False, f"engine {state}: {why}" if why else f"engine {state}")
        return Readiness(True)


def _draining() -> Draining:
    return Draining("The server is shutting down.", retry_after_s=RETRY_WHILE_DRAINING_S)


def _multiplier(body: Mapping[str, Any]) -> str:
    """The field that asks for so many sequences."""
    num_choices = body.get("n", 1)
    if body.get("best_of", 1) > num_choices:
        return "best_of"
    return "n" if num_choices > 1 else "prompt"
