"""When an engine is started again: pure, time and chance are arguments."""

from __future__ import annotations

import pytest

from llm_runtime.engines.base import BackendState as S
from llm_runtime.engines.config import SupervisionConfig
from llm_runtime.engines.supervision import (
    BecameReady,
    DrainAsked,
    Ended,
    Event,
    StartAsked,
    StopAsked,
    Supervision,
    backoff_s,
    step,
)

CONFIG = SupervisionConfig(
    restart_backoff_s=1.0, restart_backoff_max_s=10.0, max_restarts=3, restart_window_s=100.0
)


def after(*events: tuple[float, Event], config: SupervisionConfig = CONFIG) -> Supervision:
    current = Supervision()
    for now, event in events:
        current = step(current, event, now, config)
    return current


def test_ordinary_life() -> None:
    life: list[tuple[float, Event]] = [
        (0, StartAsked()), (1, BecameReady()), (2, DrainAsked()), (3, StopAsked())
    ]  # fmt: skip
    states = [after(*life[:count]).state for count in range(len(life) + 1)]
    assert states == [S.STOPPED, S.STARTING, S.READY, S.DRAINING, S.STOPPED]


def test_crash_leads_to_a_pause_and_another_start() -> None:
    crashed = after((0, StartAsked()), (1, BecameReady()), (2, Ended("exit 1")))
    assert (crashed.state, crashed.reason, crashed.num_restarts) == (S.CRASHED, "exit 1", 0)
    again = step(crashed, StartAsked(), 3, CONFIG)
    assert (again.state, again.reason, again.num_restarts) == (S.STARTING, "exit 1", 1)
    ready = step(again, BecameReady(), 4, CONFIG)
    assert (ready.state, ready.reason, ready.num_restarts) == (S.READY, None, 1)


def crashes(*instants: float, ready: bool) -> Supervision:
    """An engine started at once after each crash; ready: it came up in between."""
    events: list[tuple[float, Event]] = []
    for at in instants:
        events.append((at, StartAsked()))
        if ready:
            events.append((at, BecameReady()))
        events.append((at, Ended("exit 1")))
    return after(*events)


def test_f37_c_crash_loop_ends_in_failed_with_the_reason() -> None:
    assert crashes(0, 1, 2, ready=True).state is S.CRASHED
    failed = crashes(0, 1, 2, 3, ready=True)
    assert failed.state is S.FAILED
    assert failed.reason == "exit 1; given up after 4 attempts"


def test_crashes_far_apart_are_no_loop() -> None:
    assert crashes(0, 50, 101, 151, 202, 252, ready=True).state is S.CRASHED
    assert len(crashes(0, 50, 101, ready=True).crashes) == 2


def test_starts_that_fail_slowly_are_a_loop_too() -> None:
    assert crashes(0, 200, 400, 600, ready=False).state is S.FAILED


def test_permanent_failure_is_not_retried() -> None:
    failed = after((0, StartAsked()), (1, Ended("bad model", permanent=True)))
    assert (failed.state, failed.reason) == (S.FAILED, "bad model")


def test_no_restarts_allowed() -> None:
    config = SupervisionConfig(max_restarts=0)
    failed = after((0, StartAsked()), (1, Ended("exit 1")), config=config)
    assert (failed.state, failed.reason) == (S.FAILED, "exit 1")


def test_later_start_after_failure_begins_a_new_history() -> None:
    failed = crashes(0, 1, 2, 3, ready=True)
    again = step(failed, StartAsked(), 4, CONFIG)
    assert (again.state, again.reason, again.crashes) == (S.STARTING, None, ())
    assert step(again, Ended("exit 1"), 5, CONFIG).state is S.CRASHED


def test_end_while_draining_is_no_crash() -> None:
    drained = after((0, StartAsked()), (1, BecameReady()), (2, DrainAsked()), (3, Ended("exit 1")))
    assert drained.state is S.STOPPED


@pytest.mark.parametrize(
    ("history", "event"),
    [
        ((), BecameReady()),
        ((), Ended("x")),
        ((StartAsked(),), StartAsked()),
        ((StartAsked(),), DrainAsked()),
        ((StartAsked(), BecameReady()), StartAsked()),
        ((StartAsked(), Ended("x")), BecameReady()),
        ((StartAsked(), Ended("x")), Ended("y")),
        ((StartAsked(), Ended("x", permanent=True)), Ended("y")),
        ((StartAsked(), BecameReady(), DrainAsked()), BecameReady()),
    ],
)
def test_events_out_of_place_change_nothing(history: tuple[Event, ...], event: Event) -> None:
    before = after(*((0.0, past) for past in history))
    assert step(before, event, 1, CONFIG) == before


@pytest.mark.parametrize(
    ("num_crashes", "chance", "seconds"),
    [
        (1, 1.0, 1.0), (2, 1.0, 2.0), (3, 1.0, 4.0), (5, 1.0, 10.0), (5000, 1.0, 10.0), (3, 0.25, 1.0),
        (3, 0.0, 0.0),
    ],
)  # fmt: skip
def test_f37_c_pause_doubles_up_to_a_limit_with_full_jitter(
    num_crashes: int, chance: float, seconds: float
) -> None:
    current = Supervision(S.CRASHED, crashes=(0.0,) * num_crashes)
    assert backoff_s(current, chance, CONFIG) == seconds
