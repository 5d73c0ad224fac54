"""The `AdmissionPolicy` seam: may a request enter. Policies compose in `AdmissionController`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from llm_runtime.admission.forecast import Forecast
from llm_runtime.admission.line import Line
from llm_runtime.core.outcome import Usage
from llm_runtime.core.quick import quick
from llm_runtime.core.request import RuntimeRequest


@quick
@dataclass(frozen=True, slots=True)
class Load:
    """The pool as it stands when a request knocks.

    would_wait: with the free slots and the queue as they are, this request would have to wait.
    num_sheddable: requests among those that wait. work: of this request, as the scheduler expects it.
    forecast: for this request; None where it would not wait and while nothing was measured. line: those who
    were told to return.
    """

    num_waiting: int
    would_wait: bool
    num_sheddable: int = 0
    work: float = 1.0
    forecast: Forecast | None = None
    line: Line = field(default_factory=Line)


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """Let in, provided that so many sheddable requests leave the queue, and so much work with them."""

    num_requests: int = 0
    work: float = 0.0

    def __bool__(self) -> bool:
        return self.num_requests > 0 or self.work > 0

    def and_also(self, other: MakeRoom) -> MakeRoom:
        return MakeRoom(max(self.num_requests, other.num_requests), max(self.work, other.work))


NO_ROOM = MakeRoom()


class Reservation(Protocol):
    def rollback(self) -> None:
        """Undoes it: another policy refused."""
        ...

    def settle(self, usage: Usage | None) -> None:
        """The truth, exactly once, when the request has ended (usage None: nothing was computed)."""
        ...


class AdmissionPolicy(Protocol):
    name: str

    def reserve(self, request: RuntimeRequest, load: Load, now: float) -> Reservation | MakeRoom | None:
        """Takes what the request needs. None, MakeRoom: nothing to give back. Raises Rejected to refuse."""
        ...
