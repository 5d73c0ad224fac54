"""Who has its turn when: every participant once per round, beginning with another one each time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.overhead.awake import Awake, usable_cores
from benchmarks.overhead.participants import Participant
from benchmarks.overhead.plan import Plan
from benchmarks.overhead.servers import Cores
from benchmarks.overhead.turn import Bench, StubServer, Turn


def order(count: int, round_number: int) -> list[int]:
    """Positions of a round: forwards, backwards, then the same beginning with the next one, and so on."""
    shift = (round_number // 2) % count
    rotated = [*range(shift, count), *range(shift)]
    return rotated[::-1] if round_number % 2 else rotated


def run_rounds(plan: Plan, participants: Sequence[Participant], told: Callable[[Turn], None]) -> list[Turn]:
    """Blocks for minutes. A participant that could not be started is not tried again. told: of each turn."""
    cores = Cores.choose(pinned=plan.pinned)
    turns: list[Turn] = []
    broken: set[str] = set()
    with (
        tempfile.TemporaryDirectory(prefix="overhead-") as folder,
        Awake(usable_cores() if plan.awake else ()),
        StubServer(cores, Path(folder)) as stub,
    ):
        bench = Bench(plan, cores, stub)
        for number in range(plan.rounds):
            for position in order(len(participants), number):
                participant = participants[position]
                if participant.name in broken:
                    continue
                turn = bench.take_turn(participant, number)
                if not turn.results:
                    broken.add(participant.name)
                turns.append(turn)
                told(turn)
    return turns
