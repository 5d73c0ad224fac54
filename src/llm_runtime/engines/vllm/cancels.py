"""Ridding a vLLM server of requests that nobody wants any more.

Closing the connection makes vLLM drop the request, plain replies too. When it has done so cannot be
seen from outside, so its own abort call is made next, on another connection: the answer says that the
server has told its engine, even of a request whose closed connection it has yet to notice. The engine
takes orders in the order they were given, so whatever is sent to it later finds the slot free. Servers
without that call, and about requests whose names vLLM makes up itself, are asked something trivial
instead, as often as their loop needs to go round between seeing a connection close and telling the
engine.
"""

from __future__ import annotations

import asyncio

import orjson

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendError
from llm_runtime.core.lease import Lease
from llm_runtime.engines.upstream.client import Upstream
from llm_runtime.engines.upstream.exchange import Exchange

ABORT_PATH = "/inference/v1/abort_requests"
ROUND_TRIP_PATH = "/health"
NUM_ROUND_TRIPS = 3
ANSWER_TIMEOUT_S = 5.0
RETRY_S = 0.2

EngineIds = tuple[str, ...]


class AbortWatch:
    """`http_life.Cancellations`; a handle is the names of the request inside the engine.

    Owned by one life of the engine: `run` by its supervised task, the rest from the loop.
    """

    def __init__(self, upstream: Upstream, clock: Clock) -> None:
        self._upstream = upstream
        self._clock = clock
        self._unconfirmed: dict[Lease, EngineIds] = {}
        self._woken = asyncio.Event()
        self._has_abort_call = True

    def cancel(self, handle: EngineIds, exchange: Exchange, lease: Lease) -> None:
        lease.cancelling(self._clock.now())
        was_sent = exchange.was_sent
        exchange.abort()
        if was_sent:
            self._unconfirmed[lease] = handle
            self._woken.set()
        else:
            lease.free()

    def engine_gone(self) -> None:
        leases = list(self._unconfirmed)
        self._unconfirmed.clear()
        for lease in leases:
            lease.free()

    async def run(self) -> None:
        """Until cancelled. Asks the server only while something is being cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._unconfirmed:
                closed = dict(self._unconfirmed)
                if not await self._confirmed(closed):
                    await asyncio.sleep(RETRY_S)
                    continue
                for lease in closed.keys() & self._unconfirmed.keys():
                    del self._unconfirmed[lease]
                    lease.free()

    async def _confirmed(self, closed: dict[Lease, EngineIds]) -> bool:
        named = [name for names in closed.values() for name in names]
        if self._has_abort_call and named:
            status = await self._status("POST", ABORT_PATH, orjson.dumps({"request_ids": named}))
            if status == 200 and all(closed.values()):
                return True
            if status != 200:
                self._has_abort_call = not 400 <= status < 500
                if self._has_abort_call:
                    return False
        for _ in range(NUM_ROUND_TRIPS):
            if await self._status("GET", ROUND_TRIP_PATH) != 200:
                return False
        return True

    async def _status(self, method: str, path: str, body: bytes | None = None) -> int:
        """0 for no answer."""
        exchange = self._upstream.request(method, path, body)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await exchange.head()
                await exchange.read_all()
        except (BackendError, TimeoutError):
            return 0
        finally:
            exchange.abort()
        return exchange.status
