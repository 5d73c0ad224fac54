"""The engines of one Ray deployment as backends of ours: a fixed number of seats, taken by replicas.

The runtime knows its replicas from the start; Ray's come and go. So each seat is a `Backend` that is
ready while a replica sits in it. A replica that leaves keeps its seat until its last stream has ended.
Names of seats are few and stable, which is also what metrics want.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendError, BackendUnavailable
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.engines.base import BackendInfo, BackendState, BackendStatus, Work
from llm_runtime.engines.ray.base import Answer, Link, Member, Membership, ReplicaGone
from llm_runtime.engines.ray.rules import context_of, rules_of
from llm_runtime.engines.ray.stream import RayStream
from llm_runtime.engines.stream_run import StreamRun

log = structlog.get_logger(__name__)

REST_S = 1.0
"""How long a seat takes no requests after its replica could not take one, or did not answer."""

_EMPTY = BackendStatus(BackendState.ABSENT, "no replica is ready yet")
_LEAVING = BackendStatus(BackendState.DRAINING, "its replica is leaving")
_RESTING = BackendStatus(BackendState.STARTING, "the replica does not take requests")
_READY = BackendStatus(BackendState.READY)
_STOPPED = BackendStatus(BackendState.STOPPED)


class RaySeat:
    """Implements `Backend` for whichever replica sits here. Owned by the fleet, used on the loop."""

    def __init__(self, fleet: Fleet, position: int) -> None:
        self._fleet = fleet
        self._position = position
        self._status = _EMPTY
        self._on_change: Callable[[], None] | None = None
        self._streams: set[RayStream] = set()
        self._progressed_at: float | None = None
        self._rest: asyncio.TimerHandle | None = None
        self.member: Member | None = None

    @property
    def info(self) -> BackendInfo:
        return self._fleet.info

    @property
    def status(self) -> BackendStatus:
        return self._status

    def check(self, request: RuntimeRequest) -> None:
        """All seats have the same engine, so the first one speaks for all."""
        if self._position == 0:
            self._fleet.check(request)

    async def start(self, on_change: Callable[[], None]) -> None:
        """A seat is started at once; it is ready when a replica takes it."""
        if self._status is _STOPPED:
            raise BackendUnavailable("The engine was stopped.")
        self._on_change = on_change

    def open(self, batch: Sequence[Work]) -> StreamRun:
        streams = {work.request.id: RayStream(work.request, work.lease, self) for work in batch}
        self._streams.update(streams.values())
        return StreamRun(streams)

    def signs_of_life(self) -> float | None:
        return self._progressed_at

    async def aclose(self) -> None:
        if self._status is _STOPPED:
            return
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        if self._status is _EMPTY:
            self._status = _STOPPED
            return
        self._become(_STOPPED)
        streams = tuple(self._streams)
        for stream in streams:
            stream.fail(BackendError("The engine was stopped."))
        tasks = [stream.task for stream in streams if stream.task is not None]
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=self._fleet.stop_grace_s)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    # ---- who sits here

    @property
    def vacant(self) -> bool:
        return self.member is None and self._status is not _STOPPED

    def take(self, member: Member) -> None:
        log.info("ray.replica_joined", seat=self._position, replica=member.id, node=member.node)
        self.member = member
        self._become(_READY)

    def leave(self) -> None:
        """The replica takes nothing more; what runs in it goes on until it ends or breaks."""
        if self.member is None or self._status in (_LEAVING, _STOPPED):
            return
        log.info(
            "ray.replica_leaving", seat=self._position, replica=self.member.id, num_running=len(self._streams)
        )
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        self._become(_LEAVING)
        self._vacate_if_done()

    def _vacate_if_done(self) -> None:
        if self._status is _LEAVING and not self._streams:
            self.member = None
            self._become(_EMPTY)
            self._fleet.seat_waiting()

    def _become(self, status: BackendStatus) -> None:
        self._status = status
        if self._on_change is not None:
            self._on_change()

    # ---- as its streams see it

    def now(self) -> float:
        return self._fleet.now()

    def call(self, request: bytes) -> Answer:
        assert self.member is not None, "a seat with streams is taken"
        return self._fleet.link.call(self.member.id, request)

    def progressed(self) -> None:
        self._progressed_at = self._fleet.now()

    def ended(self, stream: RayStream, gone: ReplicaGone | None) -> None:
        self._streams.discard(stream)
        if gone is not None:
            log.warning("ray.replica_lost", seat=self._position, why=str(gone), dead=gone.dead)
        if gone is not None and gone.dead and self.member is not None:
            self._fleet.lost(self.member.id)
        elif (gone is not None or stream.engine_was_down) and self._status is _READY:
            self._become(_RESTING)
            self._rest = asyncio.get_running_loop().call_later(REST_S, self._rested)
        self._vacate_if_done()

    def _rested(self) -> None:
        self._rest = None
        if self._status is _RESTING:
            self._become(_READY)


class Fleet:
    """All seats of one deployment. Owned by the ingress; every method runs on the loop's thread."""

    def __init__(
        self, info: BackendInfo, link: Link, clock: Clock, *, num_seats: int, stop_grace_s: float = 5.0
    ) -> None:
        self.info = info
        self.link = link
        self.stop_grace_s = stop_grace_s
        self.seats = tuple(RaySeat(self, position) for position in range(num_seats))
        self._clock = clock
        self._check: Callable[[RuntimeRequest], None] | None = None
        self._dead: set[str] = set()
        self._waiting: list[Member] = []

    def now(self) -> float:
        return self._clock.now()

    def check(self, request: RuntimeRequest) -> None:
        """What the engine cannot do; nothing is known before the first replica has said what it is, and
        each replica checks for itself as well."""
        if self._check is not None:
            self._check(request)

    def update(self, membership: Membership) -> None:
        """Follows Ray's word on who is there."""
        self._dead |= membership.dead
        present = {member.id: member for member in membership.members if member.id not in self._dead}
        self._dead &= {member.id for member in membership.members} | membership.dead
        for seat in self.seats:
            if seat.member is not None and seat.member.id not in present:
                seat.leave()
        seated = {seat.member.id for seat in self.seats if seat.member is not None}
        self._waiting = [member for key, member in present.items() if key not in seated]
        if present:
            self._learn(next(iter(present.values())))
        self.seat_waiting()

    def lost(self, member_id: str) -> None:
        """A stream broke because its replica is gone: nobody else is to find that out the same way."""
        self._dead.add(member_id)
        self._waiting = [member for member in self._waiting if member.id != member_id]
        for seat in self.seats:
            if seat.member is not None and seat.member.id == member_id:
                seat.leave()

    def seat_waiting(self) -> None:
        """Gives free seats to replicas that have none."""
        for seat in self.seats:
            if not self._waiting:
                return
            if seat.vacant:
                seat.take(self._waiting.pop(0))
        if self._waiting:
            log.warning("ray.no_seat", num_replicas=len(self._waiting), num_seats=len(self.seats))

    def _learn(self, member: Member) -> None:
        self.info = replace(self.info, context_tokens=context_of(member.facts, self.info))
        self._check = rules_of(member.facts)
