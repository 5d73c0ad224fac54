"""The virtual tail: places are kept, lapse, and keep nobody out for nothing."""

from __future__ import annotations

import random

import pytest

from llm_runtime.admission.line import HEADROOM, MAX_PLACES, MAX_WAIT_S, Line
from tests.admission.builders import expected_share, told_in_turn

RATE = 2.0
WORK = 1.0
ROOM_S = 3.0


def give(line: Line, key: object, now: float, wait_s: float = 0.5) -> float:
    return line.give(key, WORK, wait_s, RATE, now)


def test_places_are_as_far_apart_as_the_work_they_bring() -> None:
    line = Line()
    told = [give(line, key, 0.0) for key in range(4)]
    assert told == [pytest.approx(each) for each in told_in_turn(0.5, 4, own_s=WORK / RATE)]


def test_a_place_lapses_when_its_holder_has_had_the_time() -> None:
    line = Line()
    told = give(line, "a", 0.0)
    assert line.holder("a", told + 1.0) is not None
    assert line.holder("a", told + 2.0) is None
    assert (line.num_places, line.num_lapsed) == (0, 1)


def test_two_with_one_key_have_two_places() -> None:
    line = Line()
    give(line, "a", 0.0)
    give(line, "a", 0.0)
    first = line.holder("a", 0.5)
    assert first is not None
    line.take(first, 0.5)
    second = line.holder("a", 0.5)
    assert second is not None
    assert not line.is_due(second, 0.5)
    assert line.is_due(second, 0.5 + 0.5 / HEADROOM)


def test_who_comes_anew_may_not_push_out_who_was_told() -> None:
    line = Line()
    give(line, "a", 0.0, wait_s=1.0)
    assert not line.has_room(ROOM_S, 0.5, ROOM_S, RATE, 0.9)
    assert line.has_room(ROOM_S - 1.0, 0.5, ROOM_S, RATE, 0.9)


def test_an_empty_queue_turns_nobody_away_for_promises_that_time_will_keep() -> None:
    """The overload has ended and nobody whom it sent away has come back yet."""
    line = Line()
    for key in range(20):
        give(line, key, 0.0, wait_s=1.0)
    assert line.has_room(0.0, 0.5, ROOM_S, RATE, 0.5)


def test_promises_that_nobody_keeps_weigh_less_and_less() -> None:
    line = Line()
    now = 0.0
    for key in range(400):
        now += give(line, key, now) + 3.0
        line.holder(None, now)
    told = [give(line, f"x{k}", now) for k in range(10)]
    assert told[-1] - told[0] < 0.1
    assert line.has_room(0.8 * ROOM_S, 0.5, ROOM_S, RATE, now)


def test_nobody_is_promised_anything_beyond_a_minute() -> None:
    line = Line()
    told = [give(line, key, 0.0) for key in range(500)]
    assert max(told) == MAX_WAIT_S
    assert line.num_places == sum(wait < MAX_WAIT_S for wait in told)


def test_the_number_of_places_is_bounded() -> None:
    line = Line()
    for key in range(MAX_PLACES + 100):
        line.give(key, 1e-9, 0.5, RATE, 0.0)
    assert line.num_places == MAX_PLACES


def test_its_sums_agree_with_its_places_whatever_happens() -> None:
    """Random gives, returns and pauses: in the end nothing is left over that could keep anybody out."""
    source = random.Random(5)
    line, now, told = Line(), 0.0, {}
    for number in range(3000):
        now += source.expovariate(2.0)
        told[number] = now + give(line, number, now, source.uniform(0.0, 3.0))
        for key, due_at in list(told.items()):
            if due_at <= now:
                del told[key]
                place = line.holder(key, now)
                chance = source.random()
                if place is not None and chance < 0.4:
                    line.take(place, now)
                elif place is not None and chance < 0.6:
                    line.renew(place, source.uniform(0.0, 3.0), RATE, now)
    line.holder(None, now + 1000.0)
    assert line.num_places == 0
    assert line.has_room(ROOM_S, 100.0, ROOM_S, RATE, now + 1000.0)


def test_who_is_told_long_waits_may_come_back_less_often_than_who_is_told_short_ones() -> None:
    line, now = Line(), 0.0
    for key in range(200):
        told = give(line, key, now, wait_s=1.0 if key % 2 else 20.0)
        now += told
        if key % 2:
            place = line.holder(key, now)
            assert place is not None
            line.take(place, now)
        now += 3.0
    line.holder(None, now)
    short = [give(line, f"s{k}", now, 1.0) for k in range(3)]
    assert short[2] - short[0] == pytest.approx(2 * 0.5 / HEADROOM, rel=0.05)


def test_a_gap_between_promises_is_given_to_who_fits_in() -> None:
    line = Line()
    give(line, "far", 0.0, wait_s=20.0)
    assert give(line, "near", 0.0, wait_s=1.0) == pytest.approx(1.0)
    expected = expected_share(1.0) + expected_share(20.0)
    assert give(line, "behind", 0.0, wait_s=19.8) == pytest.approx(19.8 + expected * 0.5 / 0.9)


def test_of_those_told_a_long_wait_fewer_are_expected_before_anything_is_known() -> None:
    """Of those told 20 s about half (19 s is the middle of their kind), so who comes behind one is told so
    much less."""
    line = Line()
    give(line, "far", 0.0, wait_s=20.0)
    behind = give(line, "behind", 0.0, wait_s=20.0)
    assert behind - 20.0 == pytest.approx(0.525 * 0.5 / 0.9, rel=0.001)
