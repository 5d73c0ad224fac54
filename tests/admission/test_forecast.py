"""The drain rate and the waits that follow from it."""

from __future__ import annotations

import pytest

from llm_runtime.admission.forecast import MIN_SAMPLES, Forecaster, Sizes
from llm_runtime.core.request import PriorityClass
from tests.admission.builders import request

WORK = 10.0


def served(forecaster: Forecaster, num: int, *, slots: int, each_s: float, at: float = 0.0) -> float:
    """`num` rounds of a full replica of that many slots, each lasting each_s; the instant of the end."""
    for round_ in range(num):
        ids = [f"{at}:{round_}:{slot}" for slot in range(slots)]
        for name in ids:
            forecaster.started(request(id=name), "r", WORK, slots, at)
        at += each_s
        for name in ids:
            forecaster.left(name, slots, at)
    return at


def test_nothing_is_foretold_before_enough_was_measured() -> None:
    forecaster = Forecaster()
    served(forecaster, MIN_SAMPLES - 1, slots=1, each_s=1.0)
    assert forecaster.rate({"r": 1}, 10.0) is None
    served(forecaster, 1, slots=1, each_s=1.0, at=10.0)
    assert forecaster.rate({"r": 1}, 11.0) == pytest.approx(WORK)


def test_the_rate_is_that_of_all_slots_in_force() -> None:
    forecaster = Forecaster()
    now = served(forecaster, 10, slots=4, each_s=2.0)
    assert forecaster.rate({"r": 4}, now) == pytest.approx(4 * WORK / 2.0)
    assert forecaster.rate({"r": 2}, now) == pytest.approx(2 * WORK / 2.0)
    assert forecaster.rate({"r": 4, "new": 4}, now) == pytest.approx(8 * WORK / 2.0)
    assert forecaster.rate({}, now) is None


def test_the_wait_is_the_work_ahead_and_what_is_left_in_a_slot() -> None:
    forecaster = Forecaster()
    now = served(forecaster, 10, slots=4, each_s=2.0)
    rate = forecaster.rate({"r": 4}, now)
    assert rate is not None
    assert rate == pytest.approx(20.0)
    assert forecaster.wait_s(100.0, rate) == pytest.approx((100.0 + WORK / 2) / 20.0)
    assert forecaster.interval_s(rate) == pytest.approx(0.5)


def test_idle_time_and_half_idle_replicas_are_not_mistaken_for_slowness() -> None:
    """One request a minute for an hour, on a replica of four slots that was measured when it was full."""
    forecaster = Forecaster()
    now = served(forecaster, 10, slots=4, each_s=2.0)
    for minute in range(60):
        forecaster.started(request(id=f"m{minute}"), "r", WORK, 4, now)
        now += 1.0
        forecaster.left(f"m{minute}", 4, now)
        now += 59.0
    assert forecaster.rate({"r": 4}, now) == pytest.approx(20.0)


def test_a_slowdown_shows_after_a_few_ends() -> None:
    forecaster = Forecaster()
    now = served(forecaster, 30, slots=4, each_s=2.0)
    now = served(forecaster, 12, slots=4, each_s=4.0, at=now)
    assert forecaster.rate({"r": 4}, now) == pytest.approx(10.0, rel=0.2)


def test_an_engine_that_stands_still_lengthens_the_wait() -> None:
    forecaster = Forecaster()
    now = served(forecaster, 10, slots=4, each_s=2.0)
    for name in "abcd":
        forecaster.started(request(id=name), "r", WORK, 4, now)
    forecaster.waits(True, now)
    in_force = {"r": 4}
    assert forecaster.rate(in_force, now + 2.0) == pytest.approx(20.0)
    assert forecaster.rate(in_force, now + 30.0) == pytest.approx(20.0 * 3.0 / 30.0)


def test_a_long_pause_before_somebody_waits_again_is_no_silence() -> None:
    forecaster = Forecaster()
    now = served(forecaster, 10, slots=4, each_s=2.0)
    forecaster.waits(False, now)
    forecaster.waits(True, now + 3600.0)
    assert forecaster.rate({"r": 4}, now + 3600.5) == pytest.approx(20.0)


def test_engines_that_were_away_are_not_slow_when_they_are_back() -> None:
    """Somebody waited for an hour for an engine that was down; what it takes now has only just begun."""
    forecaster = Forecaster()
    now = served(forecaster, 10, slots=4, each_s=2.0)
    forecaster.waits(True, now)
    now += 3600.0
    for name in "abcd":
        forecaster.started(request(id=name), "r", WORK, 4, now)
    assert forecaster.rate({"r": 4}, now + 1.0) == pytest.approx(20.0)


def static_batch(forecaster: Forecaster, at: float) -> float:
    """Four that need one to four seconds, by their work; the next batch can start when the last has ended."""
    for size in range(1, 5):
        forecaster.started(request(id=str(size)), "s", WORK * size, 4, at)
    for size in range(1, 5):
        forecaster.left(str(size), 4, at + size)
    return at + 4.0


def test_a_static_batch_drains_at_the_rate_of_its_whole_time() -> None:
    """Slots whose member has ended stay empty until the last has: the work of ten in four seconds, of which
    the slots are held for ten of sixteen slot-seconds."""
    forecaster = Forecaster(static=["s"])
    forecaster.waits(True, 0.0)
    now = 0.0
    for _ in range(20):
        now = static_batch(forecaster, now)
    assert forecaster.rate({"s": 4}, now) == pytest.approx(10 * WORK / 4.0, rel=0.03)
    assert forecaster.rate({"s": 4, "new": 4}, now) == pytest.approx(2 * 10 * WORK / 4.0, rel=0.03)


def test_static_batches_teach_only_while_somebody_waits() -> None:
    """One at a time in a batch of its own says nothing of what full batches drain."""
    forecaster = Forecaster(static=["s"])
    now = 0.0
    for k in range(20):
        forecaster.started(request(id=str(k)), "s", WORK, 4, now)
        forecaster.left(str(k), 4, now + 1.0)
        now += 2.0
    assert forecaster.rate({"s": 4}, now) is None
    forecaster.waits(True, now)
    for _ in range(20):
        now = static_batch(forecaster, now)
    forecaster.waits(False, now)
    measured = forecaster.rate({"s": 4}, now)
    forecaster.started(request(id="alone"), "s", WORK, 4, now)
    forecaster.left("alone", 4, now + 1.0)
    assert forecaster.rate({"s": 4}, now + 1.0) == measured == pytest.approx(10 * WORK / 4.0, rel=0.03)


def test_what_went_back_to_the_queue_has_drained_nothing() -> None:
    forecaster = Forecaster()
    now = served(forecaster, 10, slots=1, each_s=1.0)
    before = forecaster.rate({"r": 1}, now)
    forecaster.started(request(id="x"), "r", WORK, 1, now)
    assert forecaster.left("x", 1, now + 0.1, drained=False) is None
    assert forecaster.rate({"r": 1}, now + 0.1) == before


def test_predictions_that_are_wrong_by_a_factor_cancel_out() -> None:
    """Work expected to be thrice as much is in the queue and in the rate alike."""
    waits = []
    for factor in (1.0, 3.0):
        forecaster = Forecaster()
        now = 0.0
        for k in range(20):
            forecaster.started(request(id=str(k)), "r", factor * WORK, 1, now)
            now += 1.0
            forecaster.left(str(k), 1, now)
        rate = forecaster.rate({"r": 1}, now)
        assert rate is not None
        waits.append(forecaster.wait_s(factor * 50.0, rate))
    assert waits[0] == pytest.approx(waits[1])


def test_better_classes_that_keep_coming_take_their_part_of_the_rate() -> None:
    forecaster = Forecaster()
    now = served(forecaster, 200, slots=1, each_s=1.0)
    for k in range(100):  # half of the rate
        forecaster.started(request(id=f"i{k}", priority=1), "r", WORK / 2, 8, now + k)
        forecaster.left(f"i{k}", 8, now + k)
    now += 99.0
    assert forecaster.left_over(10.0, (), 1.0, now) == 10.0
    assert forecaster.left_over(10.0, (PriorityClass.INTERACTIVE,), 1.0, now) == pytest.approx(5.0, rel=0.15)
    assert forecaster.left_over(10.0, (PriorityClass.INTERACTIVE,), 0.25, now) == 2.5
    assert forecaster.left_over(10.0, (), 0.001, now) == 0.5


def test_a_stay_tells_how_many_were_held_meanwhile() -> None:
    forecaster = Forecaster()
    forecaster.started(request(id="a"), "r", WORK, 4, 0.0)
    forecaster.started(request(id="b"), "r", WORK, 4, 1.0)
    forecaster.started(request(id="c"), "r", WORK, 4, 3.0)
    stay = forecaster.left("a", 4, 4.0)
    assert stay is not None
    assert stay.held_s == 4.0
    assert stay.mean_held == pytest.approx((1 + 2 + 2 + 3) / 4)


def test_what_is_left_in_a_slot_is_half_of_equal_sizes_and_a_whole_mean_of_exponential_ones() -> None:
    equal, unequal = Sizes(), Sizes()
    for _ in range(100):
        equal.learn(4.0)
    for work in [1.0] * 300 + [9.0] * 100:
        unequal.learn(work)
    assert equal.residual == pytest.approx(2.0)
    assert unequal.residual > unequal.mean / 2
