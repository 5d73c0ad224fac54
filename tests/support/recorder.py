"""Listens to the runtime in tests, and lets a test wait for what it hears."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.outcome import Outcome, RequestRecord
from llm_runtime.core.request import RuntimeRequest

PATIENCE_S = 10.0


class Changes:
    """Told of every change; wakes who waits for a condition. No polling."""

    def __init__(self) -> None:
        self.patience_s = PATIENCE_S
        self._waiters: set[asyncio.Future[None]] = set()

    def note(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Returns once `condition` holds; it is looked at after each change."""
        try:
            async with asyncio.timeout(self.patience_s):
                while not condition():
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.add(waiter)
                    try:
                        await waiter
                    finally:
                        self._waiters.discard(waiter)
        except TimeoutError:
            raise AssertionError(f"waited in vain for: {what}") from None


class Recorder(Changes):
    """Implements `core.events.Events`: keeps everything."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted_ids: list[str] = []
        self.rejections: list[tuple[RuntimeRequest, LLMRuntimeError]] = []
        self.refusals: list[tuple[str, int, str]] = []
        self.dispatches: list[tuple[str, str]] = []
        self.attempts: list[tuple[str, str, bool]] = []
        self.batches: list[tuple[str, int]] = []
        self.records: list[RequestRecord] = []
        self.states: list[tuple[str, str, str | None]] = []
        self.suspects: list[str] = []

    # ---- Events

    def accepted(self, request: RuntimeRequest) -> None:
        self.accepted_ids.append(request.id)
        self.note()

    def rejected(self, request: RuntimeRequest, error: LLMRuntimeError) -> None:
        self.rejections.append((request, error))
        self.note()

    def refused(self, endpoint: str, status: int, reason: str) -> None:
        self.refusals.append((endpoint, status, reason))
        self.note()

    def dispatched(self, request: RuntimeRequest, replica: str, queue_wait_s: float) -> None:
        self.dispatches.append((request.id, replica))
        self.note()

    def attempt(self, request: RuntimeRequest, replica: str, result: str, *, retried: bool) -> None:
        self.attempts.append((replica, result, retried))
        self.note()

    def batch(self, replica: str, num_requests: int) -> None:
        self.batches.append((replica, num_requests))
        self.note()

    def settled(self, record: RequestRecord) -> None:
        self.records.append(record)
        self.note()

    def engine_state(self, replica: str, state: str, reason: str | None) -> None:
        self.states.append((replica, state, reason))
        self.note()

    def lease_suspect(self, replica: str, request_id: str) -> None:
        self.suspects.append(request_id)
        self.note()

    # ---- for tests

    def ends(self, request_id: str) -> list[tuple[Outcome, str]]:
        """Every end that was told of a request; a correct runtime tells one."""
        return [(r.outcome, r.reason) for r in self.records if r.request.id == request_id]

    async def ended(self, request_id: str) -> RequestRecord:
        """The request's end, when it has come."""
        await self.until(lambda: bool(self.ends(request_id)), f"the end of {request_id}")
        return next(record for record in self.records if record.request.id == request_id)

    def assert_settled_once(self) -> None:
        """Whatever was accepted has ended exactly once."""
        assert sorted(record.request.id for record in self.records) == sorted(self.accepted_ids)
