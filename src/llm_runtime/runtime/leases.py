"""Which request holds which slots, from the grant until the engine lets go of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from llm_runtime.core.clock import Clock
from llm_runtime.core.events import Events
from llm_runtime.core.lease import Lease
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.runtime.replica import Replica
from llm_runtime.runtime.request_handle import RequestHandle

OnFree = Callable[[Lease, RequestHandle, bool], None]
"""(the lease, whose it was, whether its request had been given back to the queue before)."""


class LeaseBook:
    """Owned by one dispatcher, used on the loop's thread. by_request: leases by their requests' names."""

    def __init__(self, on_free: OnFree, *, events: Events, clock: Clock, cancel_timeout_s: float) -> None:
        self._on_free: Final = on_free
        self._when_free: Final = self._freed  # for every lease, so it is made once
        self._events = events
        self._clock = clock
        self._cancel_timeout_s = cancel_timeout_s
        self._holders: dict[Lease, tuple[Replica, RequestHandle]] = {}
        self.by_request: dict[str, Lease] = {}
        self._given_back: set[Lease] = set()
        self._cancel_timers: dict[Lease, asyncio.TimerHandle] = {}

    def grant(self, replica: Replica, handle: RequestHandle, now: float) -> Lease:
        """Slots of `replica` for the request, all it needs."""
        request = handle.request
        request_id = request.id
        lease = Lease(request_id, replica.id, request.num_slots, now, self._when_free, replica.on_suspect)
        replica.hold(lease)
        self._holders[lease] = (replica, handle)
        self.by_request[request_id] = lease
        return lease

    @property
    def requests(self) -> Iterator[RuntimeRequest]:
        """Of every lease that is held, also those whose client has gone."""
        return (handle.request for _, handle in self._holders.values())

    def holder(self, request_id: str) -> RequestHandle | None:
        """Whose lease goes by that name."""
        lease = self.by_request.get(request_id)
        return None if lease is None else self._holders[lease][1]

    def give_back(self, lease: Lease) -> None:
        """Its request returns to the queue, and may run again before the engine lets go of these slots."""
        if lease.held:
            self._given_back.add(lease)

    def cancelling(self, lease: Lease) -> None:
        """The engine is being asked to stop; if it does not confirm in time the lease turns suspect."""
        lease.cancelling(self._clock.now())
        if lease.held and lease not in self._cancel_timers:
            loop = asyncio.get_running_loop()
            self._cancel_timers[lease] = loop.call_later(self._cancel_timeout_s, self._turn_suspect, lease)

    def close(self) -> None:
        for timer in self._cancel_timers.values():
            timer.cancel()
        self._cancel_timers.clear()

    def _turn_suspect(self, lease: Lease) -> None:
        if lease.held:
            lease.suspect()
            self._events.lease_suspect(lease.replica, lease.request_id)

    def _freed(self, lease: Lease) -> None:
        if self._cancel_timers:
            timer = self._cancel_timers.pop(lease, None)
            if timer is not None:
                timer.cancel()
        replica, handle = self._holders.pop(lease)
        request_id = lease.request_id
        if self.by_request.get(request_id) is lease:
            del self.by_request[request_id]
        was_given_back = False
        if self._given_back and lease in self._given_back:
            was_given_back = True
            self._given_back.discard(lease)
        replica.release(lease)
        self._on_free(lease, handle, was_given_back)
