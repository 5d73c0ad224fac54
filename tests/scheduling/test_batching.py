"""Batch formation, rule by rule. Instants are hand-written; nothing sleeps."""

from __future__ import annotations

import pytest

from llm_runtime.scheduling.batching import BatchFormer, Queue

WINDOW_S = 0.010
SERVICE_S = 0.065


def former(*, enabled: bool = True, max_slots: int = 8, window_s: float = WINDOW_S) -> BatchFormer:
    return BatchFormer(enabled=enabled, max_slots=max_slots, window_s=window_s)


def queue(num_waiting: int, *, limit: int = 8, deadline_at: float | None = None) -> Queue:
    return Queue(num_waiting, num_waiting, limit, deadline_at)


class Rounds:
    """Teaches a former: closed-loop rounds in which `num_clients` requests come `gap_s` apart."""

    def __init__(self, batching: BatchFormer, num_clients: int, gap_s: float = 0.001) -> None:
        self.batching = batching
        self.num_clients = num_clients
        self.gap_s = gap_s
        self.now = 0.0
        self.round = 0

    def play(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            self.open()
            for k in range(1, self.num_clients):
                self.join(k)
            self.run()

    def open(self) -> float | None:
        self.round += 1
        self.batching.arrived(1, self.now)
        return self.batching.hold_until(queue(1), self.now)

    def join(self, already_waiting: int) -> float | None:
        self.now += self.gap_s
        self.batching.arrived(already_waiting + 1, self.now)
        return self.batching.hold_until(queue(already_waiting + 1), self.now)

    def run(self) -> None:
        """All of the round run together for one service time."""
        self.batching.released()
        ids = [f"{self.round}.{k}" for k in range(self.num_clients)]
        for request_id in ids:
            self.batching.dispatched(request_id, "r0", self.now)
        self.now += SERVICE_S
        for request_id in ids:
            self.batching.finished(request_id, self.now)


def taught(num_clients: int = 4, num_rounds: int = 10) -> Rounds:
    rounds = Rounds(former(), num_clients)
    rounds.play(num_rounds)
    return rounds


def test_a_cold_start_never_waits() -> None:
    batching = former()
    batching.arrived(1, 0.0)
    assert batching.hold_until(queue(1), 0.0) is None


def test_waits_to_the_end_of_the_window_when_others_usually_come() -> None:
    rounds = taught()
    opened_at = rounds.now
    assert rounds.open() == pytest.approx(opened_at + WINDOW_S)


def test_the_window_does_not_move_when_somebody_joins() -> None:
    rounds = taught()
    held_until = rounds.open()
    assert rounds.join(1) == held_until
    assert rounds.join(2) == held_until


def test_stops_waiting_when_everybody_active_is_in() -> None:
    rounds = taught(num_clients=4)
    rounds.open()
    for k in (1, 2):
        assert rounds.join(k) is not None
    assert rounds.join(3) is None


def test_a_full_batch_is_never_held() -> None:
    rounds = taught(num_clients=4)
    rounds.open()
    assert rounds.batching.hold_until(queue(1), rounds.now) is not None
    assert rounds.batching.hold_until(queue(2, limit=2), rounds.now) is None
    assert rounds.batching.hold_until(Queue(1, 8, 8, None), rounds.now) is None


def test_more_slots_than_the_configured_maximum_are_full_too() -> None:
    rounds = Rounds(former(max_slots=3), num_clients=4)
    rounds.play(10)
    rounds.batching.arrived(1, rounds.now)
    assert rounds.batching.hold_until(queue(1, limit=64), rounds.now) is not None
    assert rounds.batching.hold_until(queue(3, limit=64), rounds.now) is None


def test_the_end_of_the_window_ends_the_waiting() -> None:
    rounds = taught()
    held_until = rounds.open()
    assert held_until is not None
    assert rounds.batching.hold_until(queue(1), held_until - 1e-6) == held_until
    assert rounds.batching.hold_until(queue(1), held_until) is None


def test_nobody_is_held_past_a_queue_deadline() -> None:
    rounds = taught()
    held_until = rounds.open()
    assert held_until is not None
    assert rounds.batching.hold_until(queue(1, deadline_at=held_until), rounds.now) is None
    assert rounds.batching.hold_until(queue(1, deadline_at=held_until + 1.0), rounds.now) == held_until


def test_waiting_that_costs_more_than_it_saves_is_not_done() -> None:
    """Joiners every 2.5 ms and a batch of 5 ms: with two or more waiting, the next is not worth it."""
    batching = former()
    now = 0.0
    for round_number in range(20):
        ids = [f"{round_number}.{k}" for k in range(4)]
        for k in range(4):
            batching.arrived(k + 1, now)
            batching.hold_until(queue(k + 1), now)
            now += 0.0025 if k < 3 else 0.0
        batching.released()
        for request_id in ids:
            batching.dispatched(request_id, "r0", now)
        now += 0.005
        for request_id in ids:
            batching.finished(request_id, now)
    batching.arrived(1, now)
    assert batching.hold_until(queue(1), now) is not None
    batching.arrived(2, now + 0.0025)
    assert batching.hold_until(queue(2), now + 0.0025) is None


def test_own_next_request_does_not_count_as_a_joiner() -> None:
    """One client with service shorter than the window: its next request comes inside the window, but
    only because the batch was started."""
    batching = former()
    now = 0.0
    for round_number in range(50):
        batching.arrived(1, now)
        assert batching.hold_until(queue(1), now) is None
        batching.released()
        batching.dispatched(str(round_number), "r0", now)
        now += 0.002
        batching.finished(str(round_number), now)
    assert batching.join_chance == 0.0


def test_joiners_are_counted_when_the_batch_was_not_held() -> None:
    """The second request comes after a start without it; the former learns from that all the same."""
    batching = former()
    now = 0.0
    held = []
    waiting = 0
    for round_number in range(6):
        if waiting == 0:
            batching.arrived(1, now)
            waiting = 1
        held.append(batching.hold_until(queue(waiting), now))
        batching.released()
        ids = [f"{round_number}.{k}" for k in range(waiting)]
        for request_id in ids:
            batching.dispatched(request_id, "r0", now)
        batching.arrived(1, now + 0.001)
        waiting = 1
        now += SERVICE_S
        for request_id in ids:
            batching.finished(request_id, now)
    assert held[0] is None
    assert held[-1] is not None
    assert batching.join_chance > 0.5


def test_a_window_whose_requests_left_is_forgotten() -> None:
    rounds = taught()
    rounds.open()
    later = rounds.now + 60.0
    rounds.batching.arrived(1, later)
    assert rounds.batching.hold_until(queue(1), later) == pytest.approx(later + WINDOW_S)


def test_service_time_is_first_dispatch_to_empty() -> None:
    batching = former()
    batching.dispatched("a", "r0", 1.0)
    batching.dispatched("b", "r0", 1.0)
    batching.finished("a", 1.5)
    assert batching.service_s is None
    batching.finished("b", 3.0)
    assert batching.service_s == pytest.approx(2.0)


def test_a_batch_that_was_given_back_is_no_sample() -> None:
    batching = former()
    batching.dispatched("a", "r0", 1.0)
    batching.dispatched("b", "r0", 1.0)
    batching.finished("a", 1.0, served=False)
    batching.finished("b", 1.1)
    assert batching.service_s is None


def test_unknown_and_repeated_ends_are_harmless() -> None:
    batching = former()
    batching.finished("never seen", 1.0)
    batching.dispatched("a", "r0", 1.0)
    batching.finished("a", 2.0)
    batching.finished("a", 9.0)
    assert batching.service_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    "batching", [former(enabled=False), former(window_s=0.0)], ids=["batching off", "no window"]
)
def test_never_waits_when_told_so(batching: BatchFormer) -> None:
    rounds = Rounds(batching, 4)
    rounds.play(10)
    assert rounds.open() is None


def test_how_much_a_decision_may_place() -> None:
    batching = former(max_slots=4)
    assert batching.may_add(0, 0, 6, limit=16), "the first always goes, even a large one"
    assert batching.may_add(1, 3, 1, limit=16)
    assert not batching.may_add(1, 3, 2, limit=16)
    assert batching.may_add(9, 9, 9, limit=4), "engines with no more slots than ours bound themselves"
    assert not former(enabled=False).may_add(1, 1, 1, limit=8)
