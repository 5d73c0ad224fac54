"""Fair flows: equal service for those who want it, no more credit than allowed, and no slot left free."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.scheduling.fair import SWEEP_ABOVE, FairFlows
from llm_runtime.scheduling.order import Waiting, fifo
from tests.scheduling.pools import make_request


def cap(request: RuntimeRequest) -> float:
    return float(request.max_tokens)


class Flow:
    """A fair band played by hand. Costs: prompt 10 + 2 x tokens."""

    def __init__(self, weights: dict[str, float] | None = None, credit: float = 0.0) -> None:
        known = weights or {}
        self.flows = FairFlows(fifo, cap, lambda tenant: known.get(tenant, 1.0), credit_tokens=credit)
        self.num_pushed = 0
        self.served: Counter[str] = Counter()

    def push(self, tenant: str, tokens: int = 45, *, num_slots: int = 1) -> Waiting:
        request = make_request(str(self.num_pushed), max_tokens=tokens, num_slots=num_slots)
        entry = Waiting(replace(request, tenant=tenant), float(self.num_pushed), self.num_pushed)
        self.num_pushed += 1
        self.flows.push(entry)
        return entry

    def take(self, refused: tuple[int, ...] = ()) -> Waiting | None:
        entry = self.flows.head(refused)
        if entry is not None:
            entry.gone = True
            self.flows.take(entry)
        return entry

    def settle(self, entry: Waiting, tokens: int | None) -> None:
        usage = None if tokens is None else Usage(10, tokens)
        self.flows.settle(entry, usage)
        if tokens is not None:
            self.served[entry.request.tenant] += 10 + 2 * tokens

    def serve(self, tokens: int | None = None) -> str:
        """One request from start to end; tokens: what it really had, else what was predicted."""
        entry = self.take()
        assert entry is not None
        self.settle(entry, entry.request.max_tokens if tokens is None else tokens)
        return entry.request.tenant


def test_f52_f_tenants_take_turns_whatever_they_queue() -> None:
    flow = Flow()
    for _ in range(8):
        flow.push("flood")
    for _ in range(2):
        flow.push("light")
    assert [flow.serve() for _ in range(6)] == ["flood", "light", "flood", "light", "flood", "flood"]


def test_turns_are_of_tokens_not_of_requests() -> None:
    flow = Flow()
    for _ in range(4):
        flow.push("long", 145)  # costs 300
    for _ in range(12):
        flow.push("short", 45)  # costs 100
    for _ in range(12):
        flow.serve()
    assert flow.served["long"] == flow.served["short"] == 900


def test_weights_scale_the_service() -> None:
    flow = Flow({"gold": 3.0})
    for _ in range(40):
        flow.push("gold")
        flow.push("plain")
    for _ in range(40):
        flow.serve()
    assert flow.served["gold"] == 3 * flow.served["plain"]


def test_within_a_tenant_the_order_holds() -> None:
    flow = Flow()
    first, second = flow.push("a"), flow.push("a")
    assert [flow.take(), flow.take()] == [first, second]


def test_what_was_predicted_is_corrected_by_what_was_used() -> None:
    flow = Flow()
    flow.push("modest", 495)  # predicted to cost 1000
    flow.push("plain", 45)
    flow.push("modest", 495)
    assert flow.serve(tokens=5) == "modest"  # cost 20
    assert flow.serve() == "plain"
    assert flow.flows.counters()["modest"] == 20
    flow.push("plain", 45)
    assert flow.serve(tokens=5) == "modest"


def test_while_it_runs_the_prediction_counts() -> None:
    flow = Flow()
    flow.push("a", 45)
    flow.push("a", 45)
    flow.push("b", 5)
    running = flow.take()
    assert running is not None
    following = flow.take()
    assert following is not None
    assert following.request.tenant == "b"


def test_who_got_nothing_is_charged_nothing() -> None:
    flow = Flow()
    flow.push("a")
    flow.push("a")
    flow.push("b")
    entry = flow.take()
    assert entry is not None
    flow.settle(entry, None)
    assert flow.flows.counters()["a"] == 0
    assert {flow.serve(), flow.serve()} == {"a", "b"}


def test_idle_time_earns_no_credit() -> None:
    flow = Flow()
    flow.push("late")
    assert flow.serve() == "late"
    for _ in range(30):
        flow.push("busy")
    for _ in range(20):
        flow.serve()
    for _ in range(10):
        flow.push("late")
    assert Counter(flow.serve() for _ in range(10)) == {"late": 5, "busy": 5}


def test_credit_is_what_was_not_wanted_up_to_its_bound() -> None:
    flow = Flow(credit=300.0)
    flow.push("late")
    flow.serve()
    for _ in range(30):
        flow.push("busy")
    for _ in range(20):
        flow.serve()
    for _ in range(10):
        flow.push("late")
    assert [flow.serve() for _ in range(8)] == ["late"] * 3 + ["busy", "late", "busy", "late", "busy"]


def test_nobody_who_was_served_has_credit() -> None:
    flow = Flow(credit=1e6)
    for _ in range(20):
        flow.push("a")
        flow.push("b")
    for _ in range(20):
        flow.serve()
    counters = flow.flows.counters()
    assert abs(counters["a"] - counters["b"]) <= 100


def test_requests_that_do_not_fit_are_passed_and_their_tenants_too() -> None:
    flow = Flow()
    flow.push("wide", num_slots=4)
    flow.push("wide", num_slots=2)
    narrow = flow.push("narrow")
    assert flow.flows.head({4, 2}) is narrow
    assert flow.flows.head({4}) is not narrow
    assert flow.flows.head({4, 2, 1}) is None
    flow.flows.drop(_gone(narrow))
    assert flow.flows.head({4, 2}) is None
    assert flow.flows.head(()) is not None


def _gone(entry: Waiting) -> Waiting:
    entry.gone = True
    return entry


def test_tenants_that_are_over_are_forgotten() -> None:
    flow = Flow()
    for number in range(5000):
        flow.push(f"tenant-{number}")
        flow.serve()
    assert len(flow.flows.counters()) <= 2 * SWEEP_ABOVE
    dropped = flow.push("unserved")
    flow.flows.drop(_gone(dropped))
    assert "unserved" not in flow.flows.counters()


def test_a_debt_is_not_forgotten() -> None:
    flow = Flow()
    flow.push("greedy", 4995)
    flow.push("other")
    assert [flow.serve(), flow.serve()] == ["greedy", "other"]
    for _ in range(10):
        flow.push("other")
    flow.push("greedy")
    assert [flow.serve() for _ in range(11)] == ["other"] * 10 + ["greedy"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from("abcd"), st.integers(1, 100)),
        st.tuples(st.just("take"), st.just(""), st.just(0)),
        st.tuples(st.sampled_from(["settle", "return", "drop"]), st.just(""), st.integers(0, 100)),
    ),
    max_size=150,
)


@settings(deadline=None)
@given(STEPS, st.sampled_from([0.0, 250.0]))
def test_something_is_next_as_long_as_something_waits(
    steps: list[tuple[str, str, int]], credit: float
) -> None:
    """And counters are what was charged: never lost, never charged twice."""
    flow = Flow(credit=credit)
    waiting: dict[int, Waiting] = {}
    running: list[Waiting] = []
    for what, tenant, number in steps:
        if what == "push":
            entry = flow.push(tenant, number)
            waiting[entry.seq] = entry
        elif what == "take":
            taken = flow.take()
            assert (taken is None) == (not waiting)
            if taken is not None:
                del waiting[taken.seq]
                running.append(taken)
        elif what == "drop" and waiting:
            entry = waiting.pop(sorted(waiting)[number % len(waiting)])
            flow.flows.drop(_gone(entry))
        elif running:
            flow.settle(running.pop(number % len(running)), None if what == "return" else number)
    for entry in running:
        flow.settle(entry, 3)
    while waiting:
        taken = flow.take()
        assert taken is not None
        assert not any(
            other.request.tenant == taken.request.tenant and other.seq < taken.seq
            for other in waiting.values()
        )
        del waiting[taken.seq]
        flow.settle(taken, 3)
    assert flow.flows.head(()) is None


@pytest.mark.parametrize("num_slots", [1, 8])
@pytest.mark.parametrize("seed", range(5))
def test_backlogged_tenants_never_drift_apart_by_more_than_what_is_in_flight(
    seed: int, num_slots: int
) -> None:
    """Lengths are predicted badly and come out at random; the difference of service stays below two of the
    largest requests for each slot, for ever."""
    source = random.Random(seed)
    flow = Flow()
    largest = 10 + 2 * 100
    for tenant in "abc":
        for _ in range(700):
            flow.push(tenant, source.randint(1, 100))
    running: list[Waiting] = []
    for _ in range(1500):
        while len(running) < num_slots:
            entry = flow.take()
            assert entry is not None
            running.append(entry)
        flow.settle(running.pop(source.randrange(len(running))), source.randint(1, 100))
        served = [flow.served[tenant] for tenant in "abc"]
        assert max(served) - min(served) <= 2 * largest * num_slots
    assert max(served) / min(served) < 1.1
