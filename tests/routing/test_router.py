"""The router: which replica, for any snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.routing.base import ReplicaView
from llm_runtime.routing.policies.least_load import LeastLoad
from llm_runtime.routing.router import Router, eligible


def request(num_slots: int = 1) -> RuntimeRequest:
    return RuntimeRequest(
        id="r", model="m", kind=EndpointKind.CHAT, body={}, arrived_at=0.0, created=0, num_slots=num_slots
    )


def view(
    replica_id: str, num_free: int = 4, num_slots: int = 8, *, ready: bool = True, **state: Any
) -> ReplicaView:
    return ReplicaView(id=replica_id, num_slots=num_slots, num_free_slots=num_free, ready=ready, **state)


def choose(replicas: Sequence[ReplicaView], num_slots: int = 1, seed: int = 0) -> str | None:
    return Router(LeastLoad(), Random(seed)).choose(request(num_slots), replicas, 0.0)


@st.composite
def views(draw: st.DrawFn) -> list[ReplicaView]:
    replicas = []
    for index in range(draw(st.integers(0, 6))):
        num_slots = draw(st.integers(1, 16))
        replicas.append(
            ReplicaView(
                id=f"r{index}",
                num_slots=num_slots,
                num_free_slots=draw(st.integers(-1, num_slots)),
                ready=draw(st.booleans()),
                draining=draw(st.booleans()),
                suspect=draw(st.booleans()),
                accepts_batch=draw(st.booleans()),
            )
        )
    return replicas


@given(replicas=views(), num_slots=st.integers(1, 8), seed=st.integers(0, 3))
def test_the_choice_is_able_and_nobody_able_is_better(
    replicas: list[ReplicaView], num_slots: int, seed: int
) -> None:
    able = [
        replica
        for replica in replicas
        if replica.ready
        and not replica.draining
        and replica.accepts_batch
        and replica.num_free_slots >= num_slots
    ]
    chosen_id = choose(replicas, num_slots, seed)
    if chosen_id is None:
        assert able == []
        return
    (chosen,) = [replica for replica in able if replica.id == chosen_id]
    rivals = [replica for replica in able if replica.suspect == chosen.suspect]
    if chosen.suspect:
        assert rivals == able, "a healthy replica was there"

    def left(replica: ReplicaView) -> float:
        return (replica.num_free_slots - num_slots) / replica.num_slots

    assert left(chosen) == max(map(left, rivals))


@given(replicas=views(), seed=st.integers(0, 3))
def test_the_same_seed_chooses_the_same(replicas: list[ReplicaView], seed: int) -> None:
    assert choose(replicas, seed=seed) == choose(replicas, seed=seed)


@given(replicas=views().filter(bool), num_slots=st.integers(1, 8), resting=st.booleans(), model=st.booleans())
def test_one_alone_is_judged_as_among_others(
    replicas: list[ReplicaView], num_slots: int, resting: bool, model: bool
) -> None:
    one = replicas[0]
    alone = ReplicaView(
        one.id, one.num_slots, one.num_free_slots, one.ready, one.draining, one.suspect, one.accepts_batch,
        False, resting, frozenset({"m" if model else "other"}),
    )  # fmt: skip
    able = eligible(request(num_slots), [alone])
    assert choose([alone], num_slots) == (able[0].id if able else None)


def test_no_replica_no_choice() -> None:
    assert choose([]) is None


@pytest.mark.parametrize(
    "unable",
    [
        view("x", 8, ready=False),
        view("x", 8, draining=True),
        view("x", 8, accepts_batch=False),
        view("x", 1),
    ],
    ids=["not ready", "draining", "static and busy", "too few slots"],
)
def test_who_cannot_is_never_chosen(unable: ReplicaView) -> None:
    assert choose([unable], num_slots=2) is None
    assert choose([unable, view("y", 2, num_slots=16)], num_slots=2) == "y"


def test_suspects_are_the_last_resort() -> None:
    suspect = view("s", 8, suspect=True)
    assert choose([suspect, view("y", 1)]) == "y"
    assert choose([suspect, view("y", 0)]) == "s"


def test_who_rests_is_asked_only_if_all_do() -> None:
    resting = view("r", 8, resting=True)
    assert choose([resting, view("y", 1)]) == "y"
    assert choose([resting, view("y", 0)]) is None, "the other one is busy, and will be free"
    assert choose([resting, view("y", 8, ready=False)]) == "r"
    assert choose([resting, view("y", 1, resting=True)]) == "r"


def test_a_model_runs_where_it_is() -> None:
    elsewhere = view("e", 8, models=frozenset({"other"}))
    assert choose([elsewhere, view("y", 1, models=frozenset({"m", "other"}))]) == "y"
    assert choose([elsewhere]) is None
    resting = view("r", 8, models=frozenset({"m"}), resting=True)
    assert choose([elsewhere, resting]) == "r", "who has not the model is no other"


def test_load_is_relative() -> None:
    assert choose([view("small", 3, num_slots=4), view("large", 8, num_slots=16)]) == "small"


def test_of_two_idle_replicas_the_larger_is_chosen() -> None:
    assert choose([view("small", 1, num_slots=1), view("large", 8, num_slots=8)]) == "large"


def test_equals_share_the_load() -> None:
    """Always the first at low concurrency is how one replica melts while the others idle."""
    router = Router(LeastLoad(), Random(1))
    replicas = [view("a"), view("b"), view("c")]
    chosen = Counter(router.choose(request(), replicas, 0.0) for _ in range(600))
    assert set(chosen) == {"a", "b", "c"}
    assert min(chosen.values()) > 150


@given(replicas=views().filter(bool), num_slots=st.integers(1, 8))
def test_scores_are_shares(replicas: list[ReplicaView], num_slots: int) -> None:
    scores = LeastLoad().score(request(num_slots), replicas, 0.0)
    assert len(scores) == len(replicas)
    assert all(0.0 <= score <= 1.0 for score in scores)
