"""Engines against a step-by-step reference, and against instants worked out by hand."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.bench.sim.config import ContinuousModel, StaticModel
from llm_runtime.bench.sim.continuous import ContinuousEngine
from llm_runtime.bench.sim.curve import constant, line, through
from llm_runtime.bench.sim.engine import Engine
from llm_runtime.bench.sim.job import Job, Run
from llm_runtime.bench.sim.static_batch import StaticEngine
from llm_runtime.bench.sim.step_log import StepLog
from tests.bench.sim.builders import SIXTEENTHS, job
from tests.bench.sim.reference import Wanted, play

SIXTEENTH = 0.0625


class Played:
    """Drives one engine through what befalls it. gone_at: by run, when its slots became free."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.gone_at: dict[Run, float] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()

    def at(self, instant: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (instant, next(self._order), action))

    def start(self, instant: float, *jobs: Job) -> list[Run]:
        runs = [Run(each) for each in jobs]
        self.at(instant, lambda now: self.engine.start(runs, now))
        return runs

    def cancel(self, instant: float, run: Run) -> None:
        def cancel(now: float) -> None:
            if run not in self.gone_at:
                self.engine.cancel(run, now)

        self.at(instant, cancel)

    def play(self) -> None:
        while self._events or self.engine.next_at is not None:
            next_at = self.engine.next_at
            if next_at is not None and (not self._events or next_at <= self._events[0][0]):
                for run in self.engine.advance(next_at):
                    assert run not in self.gone_at
                    self.gone_at[run] = next_at
            else:
                instant, _, action = heapq.heappop(self._events)
                action(instant)


def continuous(model: ContinuousModel = SIXTEENTHS) -> Played:
    return Played(ContinuousEngine(model, StepLog()))


def sixteenths(instant: float | None) -> float:
    assert instant is not None
    return instant / SIXTEENTH


# ---- continuous


def test_a_prompt_is_computed_in_chunks_and_its_last_step_brings_the_first_token() -> None:
    played = continuous()
    (run,) = played.start(0.0, job(prompt=10, output=3))
    played.play()
    # 4 + 4 + 2 prompt tokens of a sixteenth each, then two steps of one sixteenth.
    assert sixteenths(run.job.first_token_at) == 10
    assert sixteenths(run.job.last_token_at) == 12
    assert sixteenths(played.gone_at[run]) == 12
    assert sixteenths(played.engine.busy_s) == 12


def test_who_comes_during_a_step_joins_at_its_end_and_slows_the_others() -> None:
    played = continuous()
    (first,) = played.start(0.0, job(0, prompt=4, output=4))
    (second,) = played.start(4.5 * SIXTEENTH, job(1, prompt=3, output=1))
    played.play()
    # The step under way ends at 5; the next takes one for decoding and three for the prompt.
    assert sixteenths(first.job.first_token_at) == 4
    assert sixteenths(second.job.first_token_at) == 9
    assert sixteenths(first.job.last_token_at) == 10
    engine = played.engine
    assert engine.log is not None
    assert first.job.phases is not None
    gaps = engine.log.gaps(*first.job.phases)
    assert [gap / SIXTEENTH for gap in gaps] == [1, 4, 1]


def test_what_a_short_prompt_leaves_of_a_step_goes_to_the_next_prompt() -> None:
    played = continuous()
    first, second = played.start(0.0, job(0, prompt=3, output=1), job(1, prompt=5, output=1))
    played.play()
    assert sixteenths(first.job.first_token_at) == 4
    assert sixteenths(second.job.first_token_at) == 8


def test_decoding_sequences_take_their_part_of_a_step_first() -> None:
    model = ContinuousModel(4, line(SIXTEENTH, 0.0), SIXTEENTH, batch_tokens=4)
    played = continuous(model)
    played.start(0.0, *(job(number, prompt=1, output=9) for number in range(3)))
    (late,) = played.start(3.5 * SIXTEENTH, job(9, prompt=3, output=1))
    played.play()
    # Three prompts in one step of 3; one step of 1 until 4; then one prompt token a step of 2.
    assert sixteenths(late.job.first_token_at) == 4 + 3 * 2


def test_a_cached_prefix_is_not_computed_again_but_for_the_last_token() -> None:
    model = ContinuousModel(1, line(SIXTEENTH, 0.0), SIXTEENTH, batch_tokens=4, cache_tokens=100)
    played = continuous(model)
    blocks = (1, 2, 3)
    (first,) = played.start(0.0, job(0, prompt=12, output=1, block_ids=blocks, block_tokens=4))
    (again,) = played.start(20 * SIXTEENTH, job(1, prompt=12, output=1, block_ids=blocks, block_tokens=4))
    (half,) = played.start(40 * SIXTEENTH, job(2, prompt=12, output=1, block_ids=(1, 9), block_tokens=4))
    played.play()
    assert [run.job.cached_tokens for run in (first, again, half)] == [0, 11, 4]
    assert sixteenths(again.job.first_token_at) == 21
    assert sixteenths(half.job.first_token_at) == 48


def test_a_change_of_speed_begins_with_the_next_step() -> None:
    played = continuous()
    (run,) = played.start(0.0, job(prompt=1, output=5))
    played.at(2.5 * SIXTEENTH, lambda now: played.engine.change(2.0, now))
    played.play()
    assert sixteenths(run.job.last_token_at) == 3 + 2 * 2


def test_a_cancelled_sequence_leaves_at_the_end_of_the_step() -> None:
    played = continuous()
    stays, goes = played.start(0.0, job(0, prompt=1, output=9), job(1, prompt=1, output=9))
    played.cancel(4.5 * SIXTEENTH, goes)
    played.play()
    assert sixteenths(played.gone_at[goes]) == 5
    assert goes.job.num_generated == 4
    assert goes.job.last_token_at is None
    assert sixteenths(stays.job.last_token_at) == 10


def test_one_cancelled_in_its_last_prompt_step_leaves_no_token() -> None:
    played = continuous()
    (goes,) = played.start(0.0, job(0, prompt=6, output=9))
    played.cancel(4.5 * SIXTEENTH, goes)
    played.play()
    assert sixteenths(played.gone_at[goes]) == 6
    assert (goes.job.first_token_at, goes.job.num_generated) == (None, 1)
    assert played.engine.begun == []


def test_who_begins_is_told_with_the_step_that_brings_the_first_token() -> None:
    engine = ContinuousEngine(SIXTEENTHS)
    runs = [Run(job(number, prompt=2, output=3)) for number in range(2)]
    engine.start(runs, 0.0)
    begun = []
    while engine.next_at is not None:
        engine.advance(engine.next_at)
        begun.append(list(engine.begun))
    assert [names for names in begun if names] == [runs]


def test_a_crash_loses_everything_and_the_cache() -> None:
    engine = ContinuousEngine(ContinuousModel(4, constant(1.0), 1.0, 4, cache_tokens=100))
    runs = [Run(job(number, prompt=4, output=9)) for number in range(3)]
    engine.start(runs[:1], 0.0)
    assert engine.advance(0.0) == []
    engine.start(runs[1:], 0.5)
    assert set(engine.crash(1.0)) == set(runs)
    assert engine.next_at is None
    after = Run(job(9, prompt=4, output=1))
    engine.start([after], 2.0)
    while engine.next_at is not None:
        engine.advance(engine.next_at)
    assert after.job.finished_at is None  # that is the simulation's to write
    assert after.job.first_token_at == 2.0 + 1.0 + 4.0


def test_a_request_of_several_sequences_weighs_as_many() -> None:
    played = continuous(ContinuousModel(8, line(SIXTEENTH, SIXTEENTH), SIXTEENTH, batch_tokens=8))
    (run,) = played.start(0.0, job(prompt=2, output=3, num_slots=3))
    played.play()
    assert sixteenths(run.job.last_token_at) == 2 + 2 * 3


sequences = st.lists(
    st.tuples(st.floats(0, 3), st.integers(1, 40), st.integers(1, 12), st.one_of(st.none(), st.floats(0, 6))),
    min_size=1,
    max_size=8,
)


@given(
    sequences,
    st.integers(1, 12),
    st.lists(st.tuples(st.floats(0.1, 4), st.sampled_from([0.5, 2.0, 3.0])), max_size=3),
)
def test_jumping_from_change_to_change_is_the_same_as_going_step_by_step(
    drawn: list[tuple[float, int, int, float | None]], batch_tokens: int, changes: list[tuple[float, float]]
) -> None:
    model = ContinuousModel(8, through([(0, 0.001), (1, 0.05), (4, 0.07), (8, 0.19)]), 0.013, batch_tokens)
    changes = sorted(changes)
    wanted = [
        Wanted(number, at, prompt, output, cancel_at=float("inf") if leave is None else at + leave)
        for number, (at, prompt, output, leave) in enumerate(drawn)
    ]
    instants = sorted({w.at for w in wanted} | {w.cancel_at for w in wanted} | {at for at, _ in changes})
    if any(later - earlier < 1e-6 for earlier, later in pairwise(instants)):
        return  # too close for both to agree on who was first
    play(model, wanted, changes)
    played = continuous(model)
    runs = {}
    for w in wanted:
        (runs[w.name],) = played.start(w.at, job(w.name, prompt=w.prompt, output=w.output))
        if w.cancel_at < float("inf"):
            played.cancel(w.cancel_at, runs[w.name])
    for at, factor in changes:
        played.at(at, lambda now, factor=factor: played.engine.change(factor, now))  # type: ignore[misc]
    played.play()
    assert played.engine.log is not None
    for w in wanted:
        run = runs[w.name]
        if w.gone_at is None:
            continue
        assert played.gone_at[run] == pytest.approx(max(w.gone_at, w.at), abs=1e-6)
        assert run.job.num_generated == len(w.token_at)
        if len(w.token_at) > 1:
            assert run.job.first_token_at == pytest.approx(w.token_at[0], abs=1e-6)
        # Of a request that was cancelled in the step of its last token nobody asks how it went.
        if len(w.token_at) == w.output and not run.cancelled:
            assert run.job.phases is not None
            gaps = [later - earlier for earlier, later in pairwise(w.token_at)]
            assert played.engine.log.gaps(*run.job.phases) == pytest.approx(gaps, abs=1e-6)


# ---- static


def static(model: StaticModel) -> Played:
    return Played(StaticEngine(model, StepLog()))


def test_a_batch_shares_a_prefill_and_its_steps() -> None:
    played = static(StaticModel(4, constant(0.25), 0.5))
    short, long = played.start(1.0, job(0, output=1), job(1, output=4))
    played.play()
    assert [run.job.first_token_at for run in (short, long)] == [1.75, 1.75]
    assert [played.gone_at[run] for run in (short, long)] == [1.75, 2.5]
    assert (played.engine.busy_s, played.engine.slot_s) == (1.5, 2 * 0.75 + 0.75)


def test_prompts_of_a_batch_are_padded_to_the_longest() -> None:
    played = static(StaticModel(4, constant(0.25), 0.5, prefill_s_per_token=0.25))
    short, _ = played.start(0.0, job(0, prompt=1, output=1), job(1, prompt=6, output=1))
    played.play()
    assert short.job.first_token_at == 0.5 + 6 * 0.25 + 0.25


def test_a_batch_ends_with_its_last_member_and_another_can_begin() -> None:
    engine = StaticEngine(StaticModel(2, constant(0.25), 0.5), StepLog())
    first = [Run(job(0, output=1)), Run(job(1, output=2))]
    engine.start(first, 0.0)
    assert engine.advance(0.75) == first[:1]
    assert engine.next_at == 1.0
    engine.cancel(first[1], 0.875)
    assert engine.advance(0.875) == first[1:]
    assert first[1].job.num_generated == 1
    assert engine.next_at is None
    second = Run(job(2, output=3))
    engine.change(2.0, 0.875)
    engine.start([second], 1.0)
    while engine.next_at is not None:
        engine.advance(engine.next_at)
    assert second.job.first_token_at == 1.0 + 2 * 0.75
    assert second.job.phases is not None
    assert engine.log is not None
    assert engine.log.gaps(*second.job.phases) == [0.5, 0.5]


def test_a_crash_loses_the_batch() -> None:
    engine = StaticEngine(StaticModel(2, constant(0.25), 0.5))
    runs = [Run(job(0)), Run(job(1))]
    engine.start(runs, 0.0)
    assert set(engine.crash(0.1)) == set(runs)
    assert engine.next_at is None
    engine.start([Run(job(2))], 0.2)
