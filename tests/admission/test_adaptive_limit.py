"""The adaptive limit on engines made of a formula: where it settles, and what does not move it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from llm_runtime.admission.adaptive_limit import START, AdaptiveLimit
from llm_runtime.admission.forecast import Stay
from llm_runtime.core.outcome import Usage

StepTime = Callable[[float], float]
TOKENS = 40
USAGE = Usage(prompt_tokens=20, completion_tokens=TOKENS)


def flat_then_linear(knee: int) -> StepTime:
    """A step takes 20 ms up to the knee, then in proportion to its sequences."""
    return lambda n: 0.020 * max(1.0, n / knee)


def thrashing(knee: int) -> StepTime:
    return lambda n: 0.020 * max(1.0, n / knee) ** 2


def drive(
    limit: AdaptiveLimit,
    step_s: StepTime,
    seconds: float,
    *,
    at: float = 0.0,
    demand: bool = True,
    seed: int = 1,
) -> tuple[float, list[int]]:
    """A replica kept full to its limit: each leaver is replaced at once. Times of requests scatter by 10 %.
    The instant of the end, and the limit in force after each request."""
    source = random.Random(seed)
    limit.demand(demand, at)
    running: list[tuple[float, float, float]] = []  # ends_at, started_at, held
    seen: list[int] = []
    now = at
    while now < at + seconds:
        while len(running) < limit.in_force:
            held = float(limit.in_force)
            took_s = TOKENS * step_s(held) * source.lognormvariate(0.0, 0.1)
            running.append((now + took_s, now, held))
        running.sort()
        now, started_at, held = running.pop(0)
        limit.observe(Stay("r", 1.0, 1, started_at, now - started_at, held), USAGE, 0.0, now)
        seen.append(limit.in_force)
    return now, seen


def share(seen: list[int], low: float, high: float) -> float:
    return sum(low <= each <= high for each in seen) / len(seen)


@pytest.mark.parametrize("knee", [4, 12, 24, 48])
@pytest.mark.parametrize("engine", [flat_then_linear, thrashing])
def test_it_settles_at_the_knee(knee: int, engine: Callable[[int], StepTime]) -> None:
    limit = AdaptiveLimit(64)
    now, _ = drive(limit, engine(knee), 90.0)
    _, seen = drive(limit, engine(knee), 120.0, at=now)
    assert share(seen, knee / 1.35, knee * 1.35 + 1) > 0.9


def test_it_starts_low_and_uses_all_slots_of_an_engine_that_can_take_them() -> None:
    limit = AdaptiveLimit(64)
    assert limit.in_force == START
    _, seen = drive(limit, lambda n: 0.020, 60.0)
    assert seen[-1] == 64
    assert share(seen[len(seen) // 2 :], 48, 64) == 1.0


def test_an_engine_of_few_slots_starts_with_all_of_them() -> None:
    assert AdaptiveLimit(4).in_force == 4


def test_a_slowdown_of_everything_moves_it_no_further_than_a_step() -> None:
    limit = AdaptiveLimit(64)
    now, _ = drive(limit, thrashing(16), 90.0)
    _, seen = drive(limit, lambda n: 2 * thrashing(16)(n), 60.0, at=now)
    assert share(seen, 16 / 1.35, 16 * 1.35) > 0.9


def test_it_follows_a_knee_that_moves() -> None:
    limit = AdaptiveLimit(64)
    now, _ = drive(limit, thrashing(8), 90.0)
    now, _ = drive(limit, thrashing(32), 60.0, at=now)
    _, seen = drive(limit, thrashing(32), 60.0, at=now)
    assert share(seen, 32 / 1.5, 32 * 1.5) > 0.8


def test_without_demand_it_stays_where_it_is() -> None:
    limit = AdaptiveLimit(64)
    drive(limit, lambda n: 0.020, 60.0, demand=False)
    assert (limit.in_force, limit.num_moves) == (START, 0)


def test_requests_that_ran_beside_few_others_say_nothing_about_the_limit() -> None:
    limit = AdaptiveLimit(64)
    limit.demand(True, 0.0)
    for k in range(500):
        limit.observe(Stay("r", 1.0, 1, float(k), 1.0, 2.0), USAGE, 0.0, k + 1.0)
    assert limit.in_force == START


def test_a_single_slot_has_nowhere_to_go() -> None:
    limit = AdaptiveLimit(1)
    _, seen = drive(limit, lambda n: 0.020, 30.0)
    assert set(seen) == {1}
