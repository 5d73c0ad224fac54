"""All reserve or all roll back; one end for each permit."""

from __future__ import annotations

import pytest

from llm_runtime.admission.base import Load, Reservation
from llm_runtime.admission.controller import NO_LOAD, AdmissionController
from llm_runtime.core.errors import QueueFull, RateLimited
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest
from tests.admission.builders import load, request


class Recorder:
    """A policy that writes down what is done with it, and raises what it is told to."""

    def __init__(
        self,
        name: str,
        journal: list[str],
        *,
        refuse: BaseException | None = None,
        fail_at_end: bool = False,
        reserves: bool = True,
    ) -> None:
        self.name = name
        self.journal = journal
        self.refuse = refuse
        self.fail_at_end = fail_at_end
        self.reserves = reserves
        self.loads: list[Load] = []

    def reserve(self, request: RuntimeRequest, load: Load, now: float) -> Reservation | None:
        self.loads.append(load)
        if self.refuse is not None:
            raise self.refuse
        self.journal.append(f"{self.name} reserve")
        return self if self.reserves else None

    def rollback(self) -> None:
        self.journal.append(f"{self.name} rollback")
        if self.fail_at_end:
            raise OSError(self.name)

    def settle(self, usage: Usage | None) -> None:
        self.journal.append(f"{self.name} settle {usage.completion_tokens if usage else None}")
        if self.fail_at_end:
            raise OSError(self.name)


def test_both_gates_reserve_in_order_and_settle_once() -> None:
    journal: list[str] = []
    controller = AdmissionController(
        [Recorder("key", journal), Recorder("none", journal, reserves=False)], [Recorder("queue", journal)]
    )
    permit = controller.admit_identity(request(), 1.0)
    controller.admit_capacity(permit, request(), load(), 1.0)
    permit.settle(Usage(completion_tokens=7))
    assert journal == ["key reserve", "none reserve", "queue reserve", "key settle 7", "queue settle 7"]
    assert permit.num_repeated_ends == 0


def test_a_second_end_changes_nothing_and_is_counted() -> None:
    journal: list[str] = []
    permit = AdmissionController([Recorder("key", journal)], []).admit_identity(request(), 0.0)
    permit.settle(None)
    permit.settle(Usage())
    permit.rollback()
    assert journal == ["key reserve", "key settle None"]
    assert permit.num_repeated_ends == 2


def test_a_refusal_of_the_first_gate_rolls_back_the_latest_first() -> None:
    journal: list[str] = []
    refusal = RateLimited("no", retry_after_s=1.0)
    controller = AdmissionController(
        [Recorder("a", journal), Recorder("b", journal), Recorder("c", journal, refuse=refusal)], []
    )
    with pytest.raises(RateLimited) as caught:
        controller.admit_identity(request(), 0.0)
    assert caught.value is refusal
    assert journal == ["a reserve", "b reserve", "b rollback", "a rollback"]


def test_a_refusal_of_the_second_gate_undoes_the_first_as_well() -> None:
    journal: list[str] = []
    controller = AdmissionController(
        [Recorder("key", journal)],
        [Recorder("queue", journal), Recorder("deadline", journal, refuse=QueueFull("full"))],
    )
    permit = controller.admit_identity(request(), 0.0)
    with pytest.raises(QueueFull):
        controller.admit_capacity(permit, request(), load(9), 0.0)
    assert journal == ["key reserve", "queue reserve", "queue rollback", "key rollback"]
    permit.settle(None)
    assert journal[-1] == "key rollback"
    assert permit.num_repeated_ends == 1


@pytest.mark.parametrize("failure", [ZeroDivisionError("bug"), KeyboardInterrupt()])
def test_a_policy_that_breaks_leaves_nothing_reserved(failure: BaseException) -> None:
    journal: list[str] = []
    controller = AdmissionController([Recorder("a", journal), Recorder("b", journal, refuse=failure)], [])
    with pytest.raises(type(failure)):
        controller.admit_identity(request(), 0.0)
    assert journal == ["a reserve", "a rollback"]


def test_a_policy_that_breaks_at_the_end_does_not_keep_the_others_from_theirs() -> None:
    journal: list[str] = []
    policies = [Recorder("a", journal), Recorder("b", journal, fail_at_end=True), Recorder("c", journal)]
    controller = AdmissionController(policies, [])
    settled = controller.admit_identity(request(), 0.0)
    with pytest.raises(ExceptionGroup) as caught:
        settled.settle(None)
    assert [str(error) for error in caught.value.exceptions] == ["b"]
    assert journal[3:] == ["a settle None", "b settle None", "c settle None"]
    rolled_back = controller.admit_identity(request(), 0.0)
    with pytest.raises(ExceptionGroup):
        rolled_back.rollback()
    assert journal[-3:] == ["c rollback", "b rollback", "a rollback"]


def test_a_permit_that_has_ended_opens_no_second_gate() -> None:
    journal: list[str] = []
    controller = AdmissionController([], [Recorder("queue", journal)])
    permit = controller.admit_identity(request(), 0.0)
    permit.rollback()
    with pytest.raises(ValueError, match="ended"):
        controller.admit_capacity(permit, request(), load(), 0.0)
    assert journal == []


def test_policies_see_the_load_of_their_gate() -> None:
    journal: list[str] = []
    identity, capacity = Recorder("key", journal), Recorder("queue", journal)
    controller = AdmissionController([identity], [capacity])
    permit = controller.admit_identity(request(), 0.0)
    state = load(3)
    controller.admit_capacity(permit, request(), state, 0.0)
    assert identity.loads == [NO_LOAD]
    assert capacity.loads == [state]
