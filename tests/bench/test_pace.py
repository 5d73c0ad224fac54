"""Exact timers, sleeping and queueing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from llm_runtime.bench import clock
from llm_runtime.bench.clock import now
from llm_runtime.bench.pace import AWAKE_S, IDLE_S, Gate, Sleeper
from llm_runtime.bench.timers import ExactTimers, Timer


@pytest.fixture
async def timers() -> Iterator[ExactTimers]:  # type: ignore[misc]
    made = ExactTimers()
    yield made
    made.close()


async def test_timers_call_back_in_the_order_of_their_instants_and_never_early(timers: ExactTimers) -> None:
    start, called = now(), []
    done = asyncio.get_running_loop().create_future()

    def note(name: str, due: float) -> None:
        called.append(name)
        assert now() >= due
        if name == "last":
            done.set_result(None)

    for name, delay_s in (("last", 0.03), ("second", 0.01), ("third", 0.02), ("past", -1.0)):
        due = start + delay_s
        timers.call_at(due, lambda name=name, due=due: note(name, due))  # type: ignore[misc]
    timers.call_at(start + 0.015, lambda: called.append("never")).cancel()
    await asyncio.wait_for(done, 10)
    assert called == ["past", "second", "third", "last"]


async def test_timers_set_from_timers_are_kept(timers: ExactTimers) -> None:
    done = asyncio.get_running_loop().create_future()
    left = [200]

    def again() -> None:
        left[0] -= 1
        if left[0]:
            timers.call_at(now() + 0.0001, again)
        else:
            done.set_result(None)

    timers.call_at(now(), again)
    await asyncio.wait_for(done, 10)


async def test_one_failing_callback_does_not_lose_the_others(timers: ExactTimers) -> None:
    loop = asyncio.get_running_loop()
    done, reported = loop.create_future(), []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fail() -> None:
        raise RuntimeError("on purpose")

    timers.call_at(now(), fail)
    timers.call_at(now(), lambda: done.set_result(None))
    await asyncio.wait_for(done, 10)
    assert [str(error) for error in reported] == ["on purpose"]


def test_timers_are_finer_than_the_milliseconds_of_the_loop() -> None:
    """The best of many waits: no busy machine makes it look better than it is."""

    async def best() -> float:
        timers = ExactTimers()
        lags = []
        for _ in range(40):
            due = now() + 0.0013
            done = asyncio.get_running_loop().create_future()
            timers.call_at(due, lambda done=done: done.set_result(None))  # type: ignore[misc]
            await done
            lags.append(now() - due)
        timers.close()
        assert min(lags) >= 0
        return min(lags)

    with asyncio.Runner(loop_factory=clock.new_loop) as runner:
        assert runner.run(best()) < 0.0005


async def test_a_sleeper_wakes_all_and_then_nobody_sleeps(timers: ExactTimers) -> None:
    sleeper = Sleeper(timers)
    assert await sleeper.until(now() - 1)
    due = now() + 0.01
    assert await sleeper.until(due)
    assert now() >= due
    sleeping = [asyncio.create_task(sleeper.until(now() + 3600)) for _ in range(3)]
    await asyncio.sleep(0)
    sleeper.wake_all()
    assert await asyncio.gather(*sleeping) == [False, False, False]
    assert not await sleeper.until(now() + 3600)
    assert not await sleeper.until(now() - 1)


async def test_who_sleeps_long_is_awake_before_its_instant_and_still_ends_at_once() -> None:
    asked: list[float] = []

    class Noted(ExactTimers):
        def call_at(self, at: float, callback: Callable[[], None]) -> Timer:
            asked.append(at)
            return super().call_at(at, callback)

    timers = Noted()
    sleeper = Sleeper(timers)
    due = now() + IDLE_S + 0.02
    assert await sleeper.punctually(due)
    assert now() >= due
    assert asked == [due - AWAKE_S]  # woken early, and not put to sleep again
    soon = now() + 0.01
    assert await sleeper.punctually(soon)
    assert asked[1:] == [soon]
    sleeping = asyncio.create_task(sleeper.punctually(now() + 3600))
    await asyncio.sleep(0)
    sleeper.wake_all()
    assert not await sleeping
    assert not await sleeper.punctually(now() + 3600)
    timers.close()


async def test_a_gate_lets_in_as_many_as_it_has_places_first_come_first_served() -> None:
    gate, entered = Gate(2), []

    async def pass_through(name: int) -> None:
        assert await gate.enter()
        entered.append(name)

    visitors = [asyncio.create_task(pass_through(name)) for name in range(5)]
    await asyncio.sleep(0)
    assert (entered, gate.num_waiting) == ([0, 1], 3)
    gate.leave()
    gate.leave()
    await asyncio.gather(visitors[2], visitors[3])
    assert (entered, gate.num_waiting) == ([0, 1, 2, 3], 1)
    gate.leave()
    await visitors[4]
    for _ in range(2):
        gate.leave()
    assert await gate.enter()


async def test_a_place_given_to_somebody_cancelled_goes_to_the_next() -> None:
    gate = Gate(1)
    assert await gate.enter()
    gone, next_one = (asyncio.create_task(gate.enter()) for _ in range(2))
    await asyncio.sleep(0)
    gate.leave()
    gone.cancel()
    assert await next_one
    assert gone.cancelled()


async def test_a_closed_gate_turns_everybody_away() -> None:
    gate = Gate(1)
    assert await gate.enter()
    waiting = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    gate.close()
    assert await waiting is False
    assert await gate.enter() is False


async def test_a_gate_without_a_cap_is_always_open() -> None:
    gate = Gate(None)
    assert all([await gate.enter() for _ in range(1000)])
    gate.leave()
