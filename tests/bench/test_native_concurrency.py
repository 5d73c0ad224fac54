"""The arithmetic of scenario `native-concurrency`: what it makes of turns whose truth is known."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import pytest

from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.config import Target
from llm_runtime.bench.engine_commands import MODEL
from llm_runtime.bench.scenario import check
from llm_runtime.bench.scenarios import native_concurrency as scenario
from llm_runtime.bench.scenarios.native_concurrency import (
    ORDER,
    OUTPUT_TOKENS,
    PATHS,
    Pair,
    Path,
    Size,
    Turn,
    block,
    summarised,
)
from llm_runtime.core.errors import BackendError
from tests.support.server import MOCK, serve

SIZE = Size((1,), (1, 8), 1)
CASES = ("threads_1_streams_1", "threads_1_streams_8")
TOKENS = 128


def turn(duration_s: float, failed: int = 0) -> Turn:
    return Turn(TOKENS, duration_s, failed, connects=0, ttft_s=0.1)


def pairs_of(cost: float, seed: int, number: int = 44) -> list[Pair]:
    """Turns of a second on a machine that is 1.7 times slower for four seconds in every ten or so; the
    runtime takes `cost` times as long."""
    source = random.Random(seed)
    found, left_s, slow = [], 0.0, False
    for index in range(number):
        times = []
        for position in range(2):
            path = PATHS[ORDER[(2 * index + position) % len(ORDER)]]
            work_s = source.gauss(1.0, 0.03) * (cost if path == "runtime" else 1.0)
            taken_s = 0.0
            while work_s > 0:
                if left_s <= 0:
                    slow = not slow
                    left_s = source.expovariate(1 / 4 if slow else 1 / 6)
                speed = 1 / 1.7 if slow else 1.0
                step_s = min(left_s, work_s / speed)
                left_s, work_s, taken_s = left_s - step_s, work_s - step_s * speed, taken_s + step_s
            times.append((path, turn(taken_s)))
        found.append(Pair(times[0][0], **dict(times)))
    return found


def exchanged(pairs: list[Pair]) -> list[Pair]:
    return [Pair("", direct=pair.runtime, runtime=pair.direct) for pair in pairs]


@pytest.mark.parametrize("cost", [1.0, 1.03, 1.08])
def test_the_estimate_finds_the_truth_on_a_machine_of_two_moods(cost: float) -> None:
    errors, hits = [], 0
    for seed in range(40):
        cell = summarised(dict.fromkeys(CASES, pairs_of(cost, seed)), SIZE).details["cells"][CASES[0]]
        errors.append(cell["runtime_over_direct"] * cost - 1)
        hits += cell["interval"][0] <= 1 / cost <= cell["interval"][1]
    assert abs(statistics.fmean(errors)) < 0.006  # no bias to either side: three standard errors
    assert statistics.pstdev(errors) < 0.018
    assert hits >= 34


def test_exchanged_paths_have_the_reciprocal() -> None:
    pairs = pairs_of(1.05, seed=7)
    figures = [summarised(dict.fromkeys(CASES, some), SIZE).figures for some in (pairs, exchanged(pairs))]
    one, other = (each["worst_runtime_over_direct"] for each in figures)
    assert one is not None
    assert other == pytest.approx(1 / one, rel=1e-9)


def test_the_worst_cell_is_held_to_the_bar_and_its_failures_are_counted() -> None:
    good = [Pair("direct", turn(1.0), turn(1.0)) for _ in range(12)]
    bad = [Pair("direct", turn(1.0), turn(1.1, failed=1)) for _ in range(12)]
    result = summarised(dict(zip(CASES, (good, bad), strict=True)), SIZE)
    assert result.figures["worst_runtime_over_direct"] == pytest.approx(1 / 1.1)
    assert result.figures["failed"] == 12
    assert result.figures["num_cells_wholly_above"] == 1
    assert [each.met for each in check(scenario.SCENARIO, result, quick=False)] == [False, False]


def test_stalls_that_the_median_does_not_see_are_told_beside_it() -> None:
    pairs = [Pair("direct", turn(1.0), turn(3.0 if index % 4 == 0 else 1.0)) for index in range(20)]
    cell = summarised(dict.fromkeys(CASES, pairs), SIZE).details["cells"][CASES[0]]
    assert cell["runtime_over_direct"] == pytest.approx(1.0)
    assert cell["all_tokens_over_all_time"] == pytest.approx(20 / 30)
    assert cell["share_of_pairs_lost"] == 0.25


def test_each_path_comes_first_as_often_and_each_pair_has_both() -> None:
    neighbours = [ORDER[at : at + 2] for at in range(0, len(ORDER), 2)]
    assert Counter(neighbours) == {(0, 1): 2, (1, 0): 2}


def test_a_quick_result_is_not_held_to_the_ratio_and_has_no_interval() -> None:
    result = summarised(dict.fromkeys(CASES, [Pair("direct", turn(1.0), turn(2.0))] * 4), SIZE)
    assert result.figures["lowest_bound"] is None
    assert [each.bar.figure for each in check(scenario.SCENARIO, result, quick=True)] == ["failed"]


AT_ONCE = {
    **MOCK,
    "model.name": MODEL,
    "engines.mock.prefill_latency_ms": "0",
    "engines.mock.decode_latency_ms": "0",
}


@pytest.mark.parametrize(("streams", "requests"), [(1, 2), (8, 8), (16, 16)])
async def test_a_block_has_whole_turns_of_both_paths_on_warm_connections(streams: int, requests: int) -> None:
    async with serve(AT_ONCE) as server:
        target = Target(f"http://127.0.0.1:{server.port}", model=MODEL, ignore_eos=True)
        async with LoadClient(target) as one, LoadClient(target) as other:
            pairs = await block({"direct": Path(target, one), "runtime": Path(target, other)}, streams)
    assert [pair.first for pair in pairs] == ["direct", "runtime", "runtime", "direct"]
    turns = [turn for pair in pairs for turn in (pair.direct, pair.runtime)]
    assert {turn.tokens for turn in turns} == {requests * OUTPUT_TOKENS}
    assert {(turn.failed, turn.connects) for turn in turns} == {(0, 0)}
    assert all(turn.ttft_s is not None and 0 < turn.ttft_s < turn.duration_s for turn in turns)


async def test_answers_that_end_early_and_refusals_are_failures_and_a_turn_of_nothing_is_none() -> None:
    async with serve(AT_ONCE, admission__max_queue_size="2") as server:
        target = Target(f"http://127.0.0.1:{server.port}", model=MODEL, ignore_eos=True)
        async with LoadClient(target) as client:
            crowded = await Path(target, client).turn(16)
            assert crowded.failed > 0
            assert crowded.tokens == (16 - crowded.failed) * OUTPUT_TOKENS
            early = Path(Target(target.url, model=MODEL, extra_body={"max_tokens": 3}), client)
            assert (await early.turn(4)).failed == 4
            with pytest.raises(BackendError):
                await Path(Target(target.url, model=MODEL, extra_body={"n": 0}), client).turn(4)
