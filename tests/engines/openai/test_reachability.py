"""F55 c, f: several misses in a row, and no flapping."""

from __future__ import annotations

from llm_runtime.engines.openai.reachability import FIRST_RETRY_S, MISS_RETRY_S, Reachability

UP = Reachability().seen()


def test_the_first_look_decides() -> None:
    assert Reachability().up is None
    assert UP.up
    down = Reachability().missed("gone", limit=3)
    assert (down.up, down.reason) == (False, "gone")


def test_f55_c_a_miss_or_two_mean_nothing() -> None:
    state = UP
    for _ in range(2):
        state = state.missed("slow", limit=3)
        assert state.up
        assert state.reason is None
        assert state.next_look_s(5.0) == MISS_RETRY_S
    assert not state.missed("slow", limit=3).up
    assert state.seen() == UP


def test_f55_f_every_second_look_a_miss_never_counts_as_down() -> None:
    state = UP
    for _ in range(50):
        state = state.missed("no", limit=3)
        assert state.up
        state = state.seen()


def test_one_look_brings_it_back() -> None:
    assert Reachability().missed("no", limit=3).seen() == UP


def test_a_server_that_is_down_is_asked_less_and_less() -> None:
    state = Reachability()
    waits = []
    for _ in range(10):
        state = state.missed("no", limit=3)
        waits.append(state.next_look_s(5.0))
    assert waits[:4] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S, 8 * FIRST_RETRY_S]
    assert waits[-1] == 5.0
    assert state.next_look_s(0.1) == 0.1
    assert UP.next_look_s(5.0) == 5.0
