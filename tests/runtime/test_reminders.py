"""Reminders come at their instant, near or far, and cost no timer of the loop while they are far."""

from __future__ import annotations

import asyncio

import pytest

from llm_runtime.runtime.reminders import LOOK_S, NEAR_S, Reminders
from tests.engines.virtual_time import LoopClock
from tests.runtime.rig import virtual


class Somebody:
    """again_s: asks for another when it is reminded."""

    def __init__(self, reminders: Reminders, again_s: float | None = None) -> None:
        self.reminders = reminders
        self.again_s = again_s
        self.told_at: list[float] = []

    def on_reminder(self) -> None:
        self.told_at.append(now())
        if self.again_s is not None:
            self.reminders.set(self, self.again_s)


def now() -> float:
    return asyncio.get_running_loop().time()


def num_timers() -> int:
    loop = asyncio.get_running_loop()
    return sum(not timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]


SPANS_S = [-1.0, 0.0, 0.5, NEAR_S, NEAR_S + 1e-6, NEAR_S + LOOK_S, 15.0, 15.25, 3600.0]


@virtual
async def test_each_comes_once_at_its_instant() -> None:
    for span_s in SPANS_S:
        reminders = Reminders(LoopClock().now)
        somebody, begun_at = Somebody(reminders), now()
        reminders.set(somebody, span_s)
        await asyncio.sleep(5000)
        assert somebody.told_at == [pytest.approx(begun_at + max(span_s, 0.0), abs=1e-6)]


@virtual
async def test_many_at_once_and_beside_each_other() -> None:
    reminders, begun_at = Reminders(LoopClock().now), now()
    crowd = [(Somebody(reminders), 0.37 * number) for number in range(100)]
    for somebody, span_s in crowd:
        reminders.set(somebody, span_s)
    await asyncio.sleep(100)
    for somebody, span_s in crowd:
        assert somebody.told_at == [pytest.approx(begun_at + span_s, abs=1e-6)]


@virtual
async def test_who_is_reminded_may_ask_again() -> None:
    reminders, begun_at = Reminders(LoopClock().now), now()
    somebody = Somebody(reminders, again_s=7.5)
    reminders.set(somebody, 0.5)
    await asyncio.sleep(16.5)
    reminders.cancel(somebody)
    await asyncio.sleep(100)
    assert somebody.told_at == [pytest.approx(begun_at + at) for at in (0.5, 8.0, 15.5)]


@virtual
async def test_cancelled_near_or_far_it_never_comes() -> None:
    reminders = Reminders(LoopClock().now)
    for span_s, waited_s in ((1.0, 0.5), (10.0, 1.0), (10.0, 9.5)):
        somebody = Somebody(reminders)
        reminders.set(somebody, span_s)
        await asyncio.sleep(waited_s)
        reminders.cancel(somebody)
        reminders.cancel(somebody)
        await asyncio.sleep(100)
        assert somebody.told_at == []


@virtual
async def test_far_ones_share_a_timer_and_leave_none_behind() -> None:
    reminders, before = Reminders(LoopClock().now), num_timers()
    crowd = [Somebody(reminders) for _ in range(50)]
    for somebody in crowd:
        reminders.set(somebody, 15.0)
    assert num_timers() == before + 1
    for somebody in crowd:
        reminders.cancel(somebody)
    await asyncio.sleep(LOOK_S + 0.1)
    assert num_timers() == before
