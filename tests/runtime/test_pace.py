"""When what falls due: plain arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from llm_runtime.core.request import EndpointKind, RuntimeRequest, TimeLimits
from llm_runtime.core.timeline import Timeline
from llm_runtime.runtime.pace import MAX_LOOK_S, Due, Pace

ARRIVED_AT = 100.0
NONE = TimeLimits(request_s=None, idle_s=None)


def pace(
    limits: TimeLimits = NONE, *, stream: bool = True, keep_alive_s: float | None = None, **state: Any
) -> Pace:
    request = RuntimeRequest(
        id="r", model="m", kind=EndpointKind.CHAT, body={}, arrived_at=ARRIVED_AT, created=0, limits=limits,
        stream=stream,
    )  # fmt: skip
    timeline = Timeline(ARRIVED_AT)
    made = Pace(request, timeline, keep_alive_s=keep_alive_s, write_stall_s=state.pop("stall_s", None))
    if state.pop("token", False):
        timeline.token(ARRIVED_AT + 1)
    made.pulling = True
    for name, value in state.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("made", "what", "after_s"),
    [
        (pace(TimeLimits(request_s=5, idle_s=None)), Due.REQUEST, 5),
        (pace(TimeLimits(request_s=5, idle_s=None), stream=False), Due.REQUEST, 5),
        (pace(TimeLimits(request_s=5, idle_s=None), stream=False, token=True), Due.REQUEST, 5),
        (pace(TimeLimits(request_s=None, idle_s=None, total_s=7), token=True), Due.TOTAL, 7),
        (pace(TimeLimits(request_s=None, idle_s=None, first_byte_s=3)), Due.FIRST_BYTE, 3),
        (pace(TimeLimits(request_s=None, idle_s=4), begun=True, engine_at=ARRIVED_AT + 2), Due.IDLE, 6),
        (pace(keep_alive_s=10, client_at=ARRIVED_AT + 1), Due.KEEP_ALIVE, 11),
        (pace(stall_s=30, pulling=False, client_at=ARRIVED_AT + 1), Due.WRITE_STALL, 31),
        (pace(stall_s=30, pulling=False, ending=True), Due.WRITE_STALL, 30),
        (pace(stall_s=30, pulling=False, stream=False), Due.WRITE_STALL, 30),
    ],
)
def test_falls_due_at_its_instant_and_not_before(made: Pace, what: Due, after_s: float) -> None:
    at = ARRIVED_AT + after_s
    assert made.passed(at - 0.001) == []
    assert made.passed(at) == [what]
    assert made.look_in_s(at) == 0.0


@pytest.mark.parametrize(
    "made",
    [
        pace(TimeLimits(request_s=5, idle_s=None), token=True),
        pace(TimeLimits(request_s=None, idle_s=None, first_byte_s=3), written=True),
        pace(TimeLimits(request_s=None, idle_s=4)),
        pace(TimeLimits(request_s=None, idle_s=4), stream=False, begun=True),
        pace(TimeLimits(request_s=None, idle_s=4), begun=True, pulling=False),
        pace(keep_alive_s=10, stream=False),
        pace(keep_alive_s=10, pulling=False),
        pace(keep_alive_s=10, ending=True),
        pace(stall_s=30),
        pace(TimeLimits(request_s=5, idle_s=4, total_s=5, first_byte_s=1), ending=True, begun=True),
    ],
    ids=[
        "request limit ends with the first token of a stream",
        "first byte limit ends with the first byte",
        "idle limit begins with the first byte",
        "idle limit is for streams",
        "idle limit rests while the client is slow",
        "comments are for streams",
        "comments are for silence, not for slow clients",
        "no comment after a failure",
        "no stall while waiting for the engine",
        "a failed request has no limits left",
    ],
)
def test_does_not_fall_due(made: Pace) -> None:
    assert made.passed(ARRIVED_AT + 1000) == []


def test_the_earliest_comes_first() -> None:
    made = pace(TimeLimits(request_s=9, idle_s=None, total_s=8), keep_alive_s=1)
    assert made.passed(ARRIVED_AT + 9) == [Due.KEEP_ALIVE, Due.TOTAL, Due.REQUEST]


def test_looks_again_before_anything_that_moves_can_fall_due() -> None:
    """Bytes may flow between two looks, so a moving limit is looked for within its own length."""
    made = pace(TimeLimits(request_s=None, idle_s=4), keep_alive_s=10, stall_s=2)
    assert made.look_in_s(ARRIVED_AT) == 2
    made = pace(TimeLimits(request_s=1, idle_s=4), keep_alive_s=10, stall_s=2)
    assert made.look_in_s(ARRIVED_AT) == 1
    assert pace().look_in_s(ARRIVED_AT) == MAX_LOOK_S
    assert made.look_in_s(ARRIVED_AT + 50) == 0


def test_the_engines_silence_counts_only_while_somebody_listens() -> None:
    made = pace(TimeLimits(request_s=None, idle_s=4), begun=True, pulling=False)
    assert made.passed(ARRIVED_AT + 50) == []
    made.pulling = True
    assert made.passed(ARRIVED_AT + 53.9) == []
    assert made.passed(ARRIVED_AT + 54) == [Due.IDLE]
