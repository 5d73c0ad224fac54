"""The `AdmissionPolicy` seam: may a request enter. Policies compose in `AdmissionController`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llm_runtime.core.outcome import Usage
from llm_runtime.core.quick import quick
from llm_runtime.core.request import RuntimeRequest


@quick
@dataclass(frozen=True, slots=True)
class Load:
    """The pool as it stands when a request knocks. Counts in requests, slots and tokens.

    would_wait: with the free slots and the queue as they are, this request would have to wait.
    """

    num_waiting: int
    num_waiting_tokens: int
    num_running: int
    num_slots: int
    num_free_slots: int
    would_wait: bool


class Reservation(Protocol):
    def rollback(self) -> None:
        """Undoes it: another policy refused."""
        ...

    def settle(self, usage: Usage | None) -> None:
        """The truth, exactly once, when the request has ended (usage None: nothing was computed)."""
        ...


class AdmissionPolicy(Protocol):
    name: str

    def reserve(self, request: RuntimeRequest, load: Load, now: float) -> Reservation | None:
        """Takes what the request needs. None: nothing to give back. Raises Rejected to refuse."""
        ...
