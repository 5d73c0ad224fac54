"""What batch formation is worth: closed loops against a static engine, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.scheduling.static_engine import SERVICE_S, ClosedLoop, Load

WINDOW_S = 0.010
MAX_BATCH = 8


def at_once(rng: random.Random) -> float:
    return 0.0


def jitter(rng: random.Random) -> float:
    return rng.uniform(0.0, 0.002)


def loop(
    concurrency: int | Callable[[float], int],
    think_s: Callable[[random.Random], float] = at_once,
    *,
    window_s: float = WINDOW_S,
    enable_batching: bool = True,
) -> ClosedLoop:
    config = SchedulingConfig(
        max_batch_size=MAX_BATCH, batch_timeout_ms=window_s * 1000.0, enable_batching=enable_batching
    )
    clients = concurrency if callable(concurrency) else lambda now: concurrency
    return ClosedLoop(build_scheduler(config), Load(clients, think_s), num_slots=MAX_BATCH)


def rate(closed_loop: ClosedLoop, until_s: float = 10.0) -> float:
    closed_loop.run(until_s)
    return closed_loop.rate()


@pytest.mark.parametrize("think_s", [at_once, jitter])
def test_one_client_loses_nothing(think_s: Callable[[random.Random], float]) -> None:
    with_window = rate(loop(1, think_s))
    without = rate(loop(1, think_s, window_s=0.0))
    assert with_window >= 0.999 * without


@pytest.mark.parametrize("think_s", [at_once, jitter])
@pytest.mark.parametrize("concurrency", [2, 3, 4, 8, 9, 16, 64])
def test_many_clients_get_nearly_full_batches(
    concurrency: int, think_s: Callable[[random.Random], float]
) -> None:
    ideal = min(concurrency, MAX_BATCH) / SERVICE_S
    assert rate(loop(concurrency, think_s)) >= 0.95 * ideal


def test_without_the_window_batches_stay_half_full() -> None:
    """The model shows the loss that the window repairs; else the test above would prove nothing."""
    assert rate(loop(8, window_s=0.0)) <= 0.6 * MAX_BATCH / SERVICE_S


def test_without_batching_requests_run_one_by_one() -> None:
    closed_loop = loop(8, enable_batching=False)
    closed_loop.run(2.0)
    assert set(closed_loop.batch_sizes) == {1}


def test_slow_independent_clients_lose_less_than_one_percent() -> None:
    """Answers and next requests 200 ms apart: joiners are rare and come by chance."""

    def think_s(rng: random.Random) -> float:
        return rng.expovariate(1 / 0.2)

    with_window = rate(loop(4, think_s), until_s=60.0)
    without = rate(loop(4, think_s, window_s=0.0), until_s=60.0)
    assert with_window >= 0.99 * without


def test_falling_to_one_client_costs_two_windows() -> None:
    drop_at = 5.0
    closed_loop = loop(lambda now: 8 if now < drop_at else 1)
    closed_loop.run(10.0)
    last_full = max(at for at in closed_loop.completed_at if at < drop_at + SERVICE_S)
    alone = [at for at in closed_loop.completed_at if at > last_full]
    expected = last_full + SERVICE_S * len(alone)
    assert alone[-1] <= expected + 2 * WINDOW_S + 1e-6


def test_rising_to_eight_clients_fills_batches_within_a_second() -> None:
    rise_at = 5.0
    closed_loop = loop(lambda now: 1 if now < rise_at else 8)
    closed_loop.run(10.0)
    assert closed_loop.rate(after_s=rise_at + 1.0) >= 0.95 * MAX_BATCH / SERVICE_S
