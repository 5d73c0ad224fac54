"""`AdmissionController`: composes policies into two gates. All reserve, or all roll back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from llm_runtime.admission.base import NO_ROOM, AdmissionPolicy, Load, MakeRoom, Reservation
from llm_runtime.admission.tenant_gate import TenantGate
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.core.standing import Standing

# What an identity policy is shown: it judges who asks, before any pool is looked at.
NO_LOAD: Final = Load(num_waiting=0, would_wait=False)


class Permit:
    """What a request holds of the gates it passed. Owned by whoever submitted the request.

    It ends exactly once, by `settle` or `rollback`; a further end changes nothing and is counted in
    `num_repeated_ends`, which a correct runtime leaves at 0.

    room: what has to be shed for it. standing: of the request's tenant when it was let in; None where it
    has no limits.
    """

    __slots__ = ("_reservations", "num_repeated_ends", "open", "room", "standing")

    def __init__(self) -> None:
        self._reservations: list[Reservation] | None = None  # None: none, as of most requests
        self.room = NO_ROOM
        self.open = True
        self.num_repeated_ends = 0
        self.standing: Standing | None = None

    def settle(self, usage: Usage | None) -> None:
        """Tells every policy the truth, in the order of reserving. None: nothing was computed.

        Raises ExceptionGroup after all were told, if some of them failed.
        """
        reservations = self._end()
        if reservations:
            _run_all([partial(reservation.settle, usage) for reservation in reservations])

    def rollback(self) -> None:
        """Undoes every reservation, the latest first: the request did not enter after all.

        Raises ExceptionGroup after all were undone, if some of them failed.
        """
        reservations = self._end()
        if reservations:
            _run_all([reservation.rollback for reservation in reversed(reservations)])

    def add(self, reservation: Reservation | MakeRoom) -> None:
        """For the controller only: what one more policy has reserved."""
        if isinstance(reservation, MakeRoom):
            self.room = self.room.and_also(reservation)
        elif self._reservations is None:
            self._reservations = [reservation]
        else:
            self._reservations.append(reservation)

    def _end(self) -> list[Reservation] | None:
        """What is to be told of it; None: nothing, or it has ended before."""
        if not self.open:
            self.num_repeated_ends += 1
            return None
        self.open = False
        reservations, self._reservations = self._reservations, None
        return reservations


class AdmissionController:
    """Owned by the runtime; called on the loop's thread. Policies are asked in the order given.

    identity: who asks and how often; needs no pool. capacity: whether what will be queued may be.
    tenants: each tenant's own limits, which may have to be asked for elsewhere; None: there are none, and
    `admit` is `admit_identity` then (asks_elsewhere).
    """

    __slots__ = ("_capacity", "_identity", "_tenants", "asks_elsewhere")

    def __init__(
        self,
        identity: Sequence[AdmissionPolicy],
        capacity: Sequence[AdmissionPolicy],
        tenants: TenantGate | None = None,
    ) -> None:
        self._identity = tuple(identity)
        self._capacity = tuple(capacity)
        self._tenants = tenants
        self.asks_elsewhere: Final = tenants is not None

    async def admit(self, request: RuntimeRequest, now: float) -> Permit:
        """The first gate as a whole. Raises what the refusing policy raised, with nothing left reserved.

        Suspends only where tenants' limits are not kept in this process.
        """
        permit = self.admit_identity(request, now)
        if self._tenants is not None:
            try:
                held = await self._tenants.reserve(request)
            except BaseException:
                permit.rollback()
                raise
            if held is not None:
                permit.standing = held.standing
                permit.add(held)
        return permit

    async def standing(self, tenant: str) -> Standing | None:
        """How a tenant stands with its limits; None: it has none, or nobody can know."""
        return None if self._tenants is None else await self._tenants.standing(tenant)

    def admit_identity(self, request: RuntimeRequest, now: float) -> Permit:
        """The first gate's part that needs nobody else. Raises what the refusing policy raised, with
        nothing left reserved."""
        permit = Permit()
        if self._identity:
            _reserve(self._identity, permit, request, NO_LOAD, now)
        return permit

    def admit_capacity(self, permit: Permit, request: RuntimeRequest, load: Load, now: float) -> MakeRoom:
        """The second gate. Returns what has to be shed before the request is queued.

        Raises what the refusing policy raised; the permit is then rolled back as a whole, the first gate's
        reservations included, since the request never entered. Raises ValueError for a permit that has
        ended.
        """
        if not permit.open:
            raise ValueError("the permit has ended")
        _reserve(self._capacity, permit, request, load, now)
        return permit.room


def _reserve(
    policies: tuple[AdmissionPolicy, ...], permit: Permit, request: RuntimeRequest, load: Load, now: float
) -> None:
    try:
        for policy in policies:
            reserved = policy.reserve(request, load, now)
            if reserved is not None:
                permit.add(reserved)
    except BaseException:
        permit.rollback()
        raise


def _run_all(actions: Iterable[Callable[[], None]]) -> None:
    errors: list[Exception] = []
    for action in actions:
        try:
            action()
        except Exception as error:
            errors.append(error)
    if errors:
        raise ExceptionGroup("admission policies failed at the end of a request", errors)
