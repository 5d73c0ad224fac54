"""Which of the engine's slots are still busy with a request that was cancelled.

Every request carries a number of ours in a field that has no effect, and `GET /slots` shows it for
each slot. `n_discard` only matters where the engine may shift its context, which it does not here;
0 to 2**31 - 1 pass unchanged, and all slots of one request (n > 1, several prompts) bear the same.
Closing a connection is a wish; only what /slots says afterwards is the truth.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from llm_runtime.core.errors import BackendError
from llm_runtime.core.lease import Lease, LeaseState
from llm_runtime.engines.upstream.client import Upstream
from llm_runtime.engines.upstream.exchange import Exchange

TAG_FIELD = "n_discard"
TAGS = range(1, 1 << 14)
"""More than an engine ever has requests at once; an idle slot's old tag does not count."""


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """Seconds.

    first_byte_wait_s: how long a cancelled request without any answer is left alone. With
        `return_progress` the first byte says that it is in its slots; closing earlier could meet it
        on its way there, where the engine does not look.
    settle_s: how long one closed without any answer must be absent from all slots to count as gone.
    cancel_timeout_s: after it an unconfirmed cancellation is suspect.
    """

    poll_interval_s: float = 0.015
    poll_timeout_s: float = 5.0
    first_byte_wait_s: float = 2.0
    settle_s: float = 1.0
    cancel_timeout_s: float = 10.0


DEFAULT_TIMES = WatchTimes()


class _Cancelled:
    """A request somebody wants to be rid of. was_seen: it is known to have been in its slots."""

    __slots__ = ("closed_at", "exchange", "lease", "since", "was_seen")

    def __init__(self, exchange: Exchange, lease: Lease, now: float) -> None:
        self.exchange = exchange
        self.lease = lease
        self.since = now
        self.closed_at: float | None = None
        self.was_seen = False

    def close(self, now: float) -> None:
        if self.closed_at is None:
            self.was_seen = self.was_seen or self.exchange.has_started
            self.closed_at = now
            self.exchange.abort()


class SlotWatch:
    """Owned by one life of the engine: `run` by its supervised task, the rest from the loop.

    on_suspect(lease): a cancellation was not confirmed in time; it is watched on.
    """

    def __init__(
        self,
        upstream: Upstream,
        times: WatchTimes = DEFAULT_TIMES,
        on_suspect: Callable[[Lease], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upstream = upstream
        self._times = times
        self._on_suspect = on_suspect
        self._clock = clock
        self._cancelled: dict[int, _Cancelled] = {}
        self._woken = asyncio.Event()

    def cancel(self, tag: int, exchange: Exchange, lease: Lease) -> None:
        """Takes over a request that is not over: closes its connection, at once if the engine has
        answered, and frees the lease when no slot works on it any more. Nobody else may read the
        exchange from now on or use its callbacks."""
        now = self._clock()
        lease.cancelling(now)
        if not exchange.was_sent:
            exchange.abort()
            lease.free()
            return
        request = _Cancelled(exchange, lease, now)
        self._cancelled[tag] = request
        if exchange.has_started or exchange.ended:
            request.close(now)
        else:
            exchange.on_first_byte = exchange.on_closed = lambda: self._close_soon(request)
        self._woken.set()

    def engine_gone(self) -> None:
        """The process has ended: it holds nothing any more."""
        cancelled = list(self._cancelled.values())
        self._cancelled.clear()
        for request in cancelled:
            request.exchange.abort()
            request.lease.free()

    async def run(self) -> None:
        """Until cancelled. Asks the engine only while something is being cancelled."""
        while True:
            await self._until_due()
            now = self._clock()
            for request in self._cancelled.values():
                if now - request.since >= self._times.first_byte_wait_s:
                    request.close(now)
            asked_at = self._clock()
            busy = await self._busy_tags()
            if busy is not None:
                self._free_all_but(busy, asked_at)
            self._suspect()
            await asyncio.sleep(self._times.poll_interval_s)

    def _close_soon(self, request: _Cancelled) -> None:
        # Not from within the connection that is about to handle this very byte.
        asyncio.get_running_loop().call_soon(self._close, request)

    def _close(self, request: _Cancelled) -> None:
        request.close(self._clock())
        self._woken.set()

    async def _until_due(self) -> None:
        """Until a request is closed, or has waited long enough to be."""
        while all(request.closed_at is None for request in self._cancelled.values()):
            self._woken.clear()
            since = min((request.since for request in self._cancelled.values()), default=None)
            wait_s = None if since is None else since + self._times.first_byte_wait_s - self._clock()
            if wait_s is not None and wait_s <= 0:
                return
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                return

    async def _busy_tags(self) -> set[int] | None:
        """Tags of the slots at work; None if the engine did not say."""
        exchange = self._upstream.request("GET", "/slots")
        try:
            async with asyncio.timeout(self._times.poll_timeout_s):
                await exchange.head()
                body = await exchange.read_all()
        except (BackendError, TimeoutError):
            return None
        finally:
            exchange.abort()
        return busy_tags(body) if exchange.status == 200 else None

    def _free_all_but(self, busy: set[int], asked_at: float) -> None:
        for tag, request in list(self._cancelled.items()):
            if tag in busy:
                request.was_seen = True
            elif request.closed_at is None or request.closed_at > asked_at:
                continue
            elif request.was_seen or asked_at - request.closed_at >= self._times.settle_s:
                del self._cancelled[tag]
                request.lease.free()

    def _suspect(self) -> None:
        now = self._clock()
        for request in self._cancelled.values():
            overdue = now - request.since >= self._times.cancel_timeout_s
            if overdue and request.lease.state is LeaseState.CANCELLING:
                request.lease.suspect()
                if self._on_suspect is not None:
                    self._on_suspect(request.lease)


def busy_tags(body: bytes) -> set[int] | None:
    """From the body of `GET /slots`; None if it is not what it should be."""
    try:
        slots: Any = orjson.loads(body)
        if not isinstance(slots, list) or not slots:
            return None
        return {slot["params"][TAG_FIELD] for slot in slots if slot["is_processing"]}
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
