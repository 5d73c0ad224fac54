"""All participants at once, on the same core, each with its share of the load.

In turns, a round's ratios still hold whatever the machine did between one turn and the next. Here every
disturbance (a neighbour, a slower clock, a wake-up that takes longer) meets everybody alike and cancels, so
intervals become some times narrower. What it can't tell: delays, because everybody waits for the others.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.overhead.awake import Awake, usable_cores
from benchmarks.overhead.participants import Participant
from benchmarks.overhead.phase import Phase, Result
from benchmarks.overhead.plan import PhaseName, Plan
from benchmarks.overhead.rounds import order
from benchmarks.overhead.servers import Cores, StartError
from benchmarks.overhead.turn import Bench, LoadError, Running, StubServer, Turn, run_load

TOGETHER: tuple[PhaseName, ...] = ("streams", "steps", "paced")
"""Phases whose load is given, and not as much as somebody can take."""


def run_together(plan: Plan, participants: Sequence[Participant], told: Callable[[Turn], None]) -> list[Turn]:
    """Blocks for minutes. Every round starts everybody afresh. A round in which somebody can't be started
    or served is told by that one's turn and ends the run: shares would be others. told: of each turn."""
    cores = Cores.choose(pinned=plan.pinned)
    turns: list[Turn] = []
    with (
        tempfile.TemporaryDirectory(prefix="overhead-") as folder,
        Awake(usable_cores() if plan.awake else ()),
        StubServer(cores, Path(folder)) as stub,
    ):
        bench = Bench(plan, cores, stub, share=1 / len(participants))
        for number in range(plan.rounds):
            in_order = [participants[position] for position in order(len(participants), number)]
            of_round = _round(bench, in_order, number)
            turns += of_round
            for turn in of_round:
                told(turn)
            if any(turn.problem for turn in of_round):
                break
    return turns


def _round(bench: Bench, participants: Sequence[Participant], number: int) -> list[Turn]:
    with ExitStack() as stack:
        running: list[Running] = []
        for participant in participants:
            try:
                running.append(stack.enter_context(bench.started(participant)))
            except (StartError, OSError) as error:
                return [Turn(participant.name, number, problem=str(error))]
        try:
            with ThreadPoolExecutor(len(running)) as pool:
                return _measured(bench, running, number, pool)
        except (LoadError, subprocess.TimeoutExpired) as error:
            return [Turn(one.participant.name, number, problem=str(error)) for one in running]


def _measured(bench: Bench, running: Sequence[Running], number: int, pool: ThreadPoolExecutor) -> list[Turn]:
    def load(phases: Sequence[Phase]) -> list[Result]:
        return list(pool.map(lambda phase: run_load(phase, bench.cores), phases))

    for phases in zip(*(bench.warm_up(one) for one in running), strict=True):
        load(phases)
    before = bench.stub.num_requests
    turns = [Turn(one.participant.name, number, ready_s=one.ready_s) for one in running]
    for name in bench.plan.phases:
        bench.set_pace(name)
        results = load([bench.phase(name, one, number) for one in running])
        turns = [
            replace(turn, results={**turn.results, name: result})
            for turn, result in zip(turns, results, strict=True)
        ]
    sent = [sum(result.num_sent for result in turn.results.values()) for turn in turns]
    reached = bench.stub.num_requests - before
    return [
        # The stub doesn't know who sent what: when the sums agree, so does each.
        bench.closed(turn, one, sent=num_sent, reached=num_sent + reached - sum(sent))
        for turn, one, num_sent in zip(turns, running, sent, strict=True)
    ]
