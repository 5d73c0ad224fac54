"""What can run now: `Vacancy` answers for one request as a decision's capacity does."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.admission.adaptive_limit import AdaptiveLimit
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.routing.policies.least_load import LeastLoad
from llm_runtime.routing.router import Router
from llm_runtime.runtime.capacity import DecisionCapacity, Limits, ReplicaSlots, Vacancy
from tests.runtime.slots import Slots


@st.composite
def replicas(draw: st.DrawFn) -> dict[str, ReplicaSlots]:
    found: dict[str, ReplicaSlots] = {}
    for index in range(draw(st.integers(1, 4))):
        num_slots = draw(st.integers(1, 12))
        found[f"r{index}"] = Slots(
            f"r{index}",
            num_slots,
            draw(st.integers(0, num_slots)),
            is_static=draw(st.booleans()),
            ready=draw(st.sampled_from((True, True, False))),
            draining=draw(st.sampled_from((False, False, True))),
        )
    return found


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    names = draw(st.sets(st.sampled_from(("r0", "r1", "r2", "r3"))))
    return Limits({name: AdaptiveLimit(12, draw(st.integers(1, 12))) for name in sorted(names)})


def request(num_slots: int) -> RuntimeRequest:
    return RuntimeRequest(
        id="r", model="m", kind=EndpointKind.CHAT, body={}, arrived_at=0.0, created=0, num_slots=num_slots
    )


@given(replicas=replicas(), limits=limits(), num_slots=st.integers(1, 12), seed=st.integers(0, 3))
def test_both_place_the_same(
    replicas: Mapping[str, ReplicaSlots], limits: Limits, num_slots: int, seed: int
) -> None:
    vacancy = Vacancy(replicas, Router(LeastLoad(), Random(seed)), limits)
    decision = DecisionCapacity(replicas, Router(LeastLoad(), Random(seed)), limits, 0.0)
    assert vacancy.batch_limit == decision.batch_limit
    assert vacancy.place(request(num_slots)) == decision.place(request(num_slots))
