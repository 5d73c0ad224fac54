"""The capacity gate: whom it refuses, when it tells them to return, and that they are then let in."""

from __future__ import annotations

from typing import Any

import pytest

from llm_runtime.admission.base import Load, MakeRoom
from llm_runtime.admission.capacity_gate import CLOSE_AT, CapacityGate, time_to_wait_s
from llm_runtime.admission.line import Line
from llm_runtime.admission.retry_budget import BURST
from llm_runtime.core.errors import QueueFull, Rejected, RetriesExhausted, WouldMissDeadline
from llm_runtime.core.request import TimeLimits
from tests.admission.builders import forecast, load, request, told_in_turn

BATCH = 8


def told_s(gate: CapacityGate, state: Load, now: float = 0.0, **fields: Any) -> float | None:
    """What the refusal tells; None if it lets the request in."""
    try:
        gate.reserve(request(arrived_at=now, **fields), state, now)
    except Rejected as error:
        return error.retry_after_s
    return None


@pytest.mark.parametrize(
    ("cap", "num_waiting", "would_wait", "refused"),
    [
        (2, 1, True, False),
        (2, 2, True, True),
        (2, 3, True, True),
        (0, 0, False, False),
        (0, 0, True, True),
        (2, 2, False, False),
    ],
)
def test_the_cap_refuses_only_who_would_wait_in_a_full_queue(
    cap: int, num_waiting: int, would_wait: bool, refused: bool
) -> None:
    gate, state = CapacityGate(cap), load(num_waiting, would_wait=would_wait)
    if refused:
        with pytest.raises(QueueFull, match=f"{num_waiting} requests are waiting"):
            gate.reserve(request(), state, 0.0)
    else:
        assert gate.reserve(request(), state, 0.0) is None


def test_a_negative_cap_is_refused() -> None:
    with pytest.raises(ValueError, match="max_queue_size"):
        CapacityGate(-1)


def test_before_anything_was_measured_nobody_is_refused_on_a_guess() -> None:
    gate = CapacityGate(max_predicted_wait_s=0.001)
    hurried = TimeLimits(request_s=0.001)
    assert told_s(gate, load(10_000), limits=hurried) is None


def test_before_anything_was_measured_a_full_queue_tells_a_second_each() -> None:
    """Of those told 1 s, 400 in 401 are expected; of those told 2 s, 100 in 101."""
    gate, state = CapacityGate(1), load(1)
    told = [told_s(gate, state, id=str(k)) for k in range(3)]
    second = 1.0 + 400 / 401 / 0.9
    assert told == [pytest.approx(each) for each in (1.0, second, second + 100 / 101 / 0.9)]
    assert told == [pytest.approx(each) for each in told_in_turn(1.0, 3, own_s=1.0)]


def test_a_queue_at_the_share_that_closes_it_is_not_above_it_whatever_the_rounding() -> None:
    """While there are promises, a queue of 20 closes for others at 17: 85 % of it, as 17 intervals are of 20,
    though not to the last bit."""
    for interval_s in (0.1, 0.3, 0.7, 1 / 3, 0.0168667):
        gate, line = CapacityGate(20), Line()
        soon = forecast(0.0, interval_s=interval_s, rate=1 / interval_s)
        assert told_s(gate, load(40, forecast=soon, line=line), id="told") is not None
        assert told_s(gate, load(16, forecast=soon, line=line), id="17th") is None
        assert told_s(gate, load(17, forecast=soon, line=line), id="18th") is not None


def test_the_kth_refused_is_told_a_place_behind_those_told_before() -> None:
    gate, line = CapacityGate(4), Line()
    state = load(5, forecast=forecast(1.5, interval_s=0.25, own_s=0.25, rate=4.0), line=line)
    told = [told_s(gate, state, id=str(k)) for k in range(4)]
    assert told == [pytest.approx(each) for each in told_in_turn(0.5, 4, own_s=0.25)]


def test_who_returns_when_told_is_let_in_and_who_comes_anew_is_not() -> None:
    """A queue of four that drains one a second: the place that became free is the returning client's."""
    gate, line = CapacityGate(4), Line()
    full = load(4, forecast=forecast(4.5), line=line)
    assert told_s(gate, full, id="a") == pytest.approx(1.0)
    one_left = load(3, forecast=forecast(3.5), line=line)
    assert told_s(gate, one_left, now=1.0, id="new") is not None
    assert told_s(gate, one_left, now=1.0, id="a") is None
    assert line.num_kept == 1


def test_who_returns_too_early_keeps_the_place() -> None:
    gate, line = CapacityGate(4), Line()
    full = load(4, forecast=forecast(4.5), line=line)
    first = told_s(gate, full, id="a")
    assert first is not None
    assert told_s(gate, full, now=0.4, id="a") == pytest.approx(first - 0.4)
    assert line.num_places == 1


def test_clients_that_send_the_same_have_places_of_their_own() -> None:
    """As a crowd does that asks one thing: none of them has sent it before, so none is taken for another."""
    gate, line = CapacityGate(4), Line()
    full = load(4, forecast=forecast(4.5), line=line)
    told = [told_s(gate, full, id=str(k), fingerprint=7, num_retries=0) for k in range(3)]
    assert told == [pytest.approx(each) for each in told_in_turn(1.0, 3, own_s=1.0)]
    assert line.num_places == 3
    three = load(3, forecast=forecast(3.5), line=line)
    assert told_s(gate, three, now=1.0, id="4", fingerprint=7, num_retries=0) is not None
    assert told_s(gate, three, now=1.0, id="0", fingerprint=7, num_retries=1) is None
    assert line.num_kept == 1


def test_a_promise_holds_although_the_queue_is_a_little_longer_than_foreseen() -> None:
    gate, line = CapacityGate(8), Line()
    told = told_s(gate, load(8, forecast=forecast(8.5), line=line), id="a")
    assert told is not None
    still_full = load(8, forecast=forecast(8.5), line=line)
    assert told_s(gate, still_full, now=told, id="a") is None


def test_a_broken_promise_puts_its_holder_first() -> None:
    gate, line = CapacityGate(4), Line()
    full = load(4, forecast=forecast(4.5), line=line)
    told = [told_s(gate, full, id=name) for name in ("a", "b", "c")]
    assert told[0] is not None
    again = told_s(gate, full, now=told[0], id="a")
    assert again is not None
    assert 1.0 <= again <= 2.0, "behind those alone who are due by then"
    assert line.num_broken == 1


def test_who_would_miss_its_limit_is_refused_at_once_and_told_the_time_until_it_would_not() -> None:
    gate = CapacityGate()
    state = load(9, forecast=forecast(9.5))
    with pytest.raises(WouldMissDeadline, match=r"about 9\.5 s .* for 5\.0 s") as caught:
        gate.reserve(request(stream=True, limits=TimeLimits(request_s=5.0)), state, 0.0)
    assert caught.value.retry_after_s == pytest.approx(9.5 - CLOSE_AT * 5.0)


def test_a_configured_limit_holds_for_all() -> None:
    state = load(9, forecast=forecast(9.5))
    assert told_s(CapacityGate(max_predicted_wait_s=12.0), state) is None
    assert told_s(CapacityGate(max_predicted_wait_s=9.0), state) is not None


@pytest.mark.parametrize(
    ("limits", "stream", "expected"),
    [
        (TimeLimits(request_s=None), True, float("inf")),
        (TimeLimits(request_s=10.0), True, 10.0 - 1.0 - 2.0),
        (TimeLimits(request_s=10.0), False, 10.0 - 1.0 - 5.0),
        (TimeLimits(request_s=10.0, queue_s=3.0), True, 3.0),
        (TimeLimits(request_s=None, total_s=10.0), True, 10.0 - 1.0 - 5.0),
        (TimeLimits(request_s=None, first_byte_s=4.0), True, 4.0 - 1.0 - 2.0),
        (TimeLimits(request_s=2.0), False, 0.0),
    ],
)
def test_the_time_to_wait_leaves_the_time_on_the_engine(
    limits: TimeLimits, stream: bool, expected: float
) -> None:
    state = load(1, forecast=forecast(1.0, prompt_s=2.0, answer_s=5.0))
    asked = request(stream=stream, limits=limits, arrived_at=10.0)
    assert time_to_wait_s(asked, state, 11.0) == pytest.approx(expected)


def test_a_full_queue_of_sheddable_work_drops_one_for_who_is_not_sheddable() -> None:
    gate, state = CapacityGate(4), load(4, num_sheddable=2)
    assert gate.reserve(request(), state, 0.0) == MakeRoom(num_requests=1)
    with pytest.raises(QueueFull):
        gate.reserve(request(priority=BATCH), state, 0.0)


def test_sheddable_work_ahead_is_dropped_as_far_as_it_helps() -> None:
    gate = CapacityGate(max_predicted_wait_s=4.0)
    enough = load(9, forecast=forecast(9.4, sheddable_s=7.0, rate=2.0))
    room = gate.reserve(request(), enough, 0.0)
    assert room is not None
    assert room.num_requests == 0
    assert room.work == pytest.approx((9.4 - CLOSE_AT * 4.0) * 2.0)
    too_little = load(9, forecast=forecast(9.4, sheddable_s=3.0, rate=2.0))
    with pytest.raises(WouldMissDeadline):
        gate.reserve(request(), too_little, 0.0)


def test_retries_that_nobody_asked_for_are_let_in_up_to_their_share() -> None:
    gate, line = CapacityGate(retry_share=0.25), Line()
    state = load(5, forecast=forecast(5.5), line=line)
    num_let_in = sum(told_s(gate, state, id=f"r{k}", num_retries=1) is None for k in range(100))
    assert num_let_in == BURST
    for k in range(40):
        assert told_s(gate, state, id=f"f{k}", num_retries=0) is None
    num_let_in = sum(told_s(gate, state, id=f"s{k}", num_retries=2) is None for k in range(100))
    assert num_let_in == 0.25 * 40


def test_a_retry_beyond_the_budget_is_told_when_and_let_in_then() -> None:
    gate, line = CapacityGate(retry_share=0.0), Line()
    state = load(5, forecast=forecast(5.5), line=line)
    for k in range(int(BURST)):
        told_s(gate, state, id=str(k), num_retries=1)
    with pytest.raises(RetriesExhausted) as caught:
        gate.reserve(request(id="late", num_retries=1), state, 0.0)
    assert caught.value.retry_after_s == pytest.approx(5.5)
    assert told_s(gate, load(1, forecast=forecast(1.5), line=line), now=5.5, id="late", num_retries=2) is None


def test_an_idle_pool_asks_no_retry_for_a_budget() -> None:
    gate = CapacityGate(retry_share=0.0)
    assert all(told_s(gate, load(0), id=str(k), num_retries=1) is None for k in range(100))
