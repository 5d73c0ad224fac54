"""What is asked in virtual time is what the harness would ask for the same plan."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import pytest

from llm_runtime.bench.arrivals import offsets
from llm_runtime.bench.config import (
    ClosedLoop,
    Limits,
    OpenLoop,
    Plan,
    Prefix,
    Replay,
    Target,
    TraceFile,
    TrafficClass,
)
from llm_runtime.bench.lengths import Fixed, Uniform
from llm_runtime.bench.sim.feed import PlanFeed
from llm_runtime.bench.sim.job import Ask, Job
from llm_runtime.bench.traces import TraceEntry
from llm_runtime.bench.workload import SyntheticSessions, TraceSessions
from llm_runtime.core.errors import QueueFull
from tests.bench.sim.builders import job as make_job

TARGET = Target("http://nobody")


def plan_of(**fields: object) -> Plan:
    return Plan(TARGET, **fields)  # type: ignore[arg-type]


def ended(ask: Ask, *, failed: bool = False) -> Job:
    job = make_job(ask.number)
    job.ask = ask
    job.error = QueueFull("full") if failed else None
    return job


def numbers(asks: Iterable[Ask]) -> list[int]:
    return [ask.number for ask in asks]


def test_an_open_loop_asks_at_the_schedules_instants_with_the_sessions_lengths() -> None:
    load = OpenLoop(5.0, "gamma", 0.5)
    traffic = (
        TrafficClass("a", 3.0, Uniform(1, 99), Uniform(1, 50), priority=2, tenant="x"),
        TrafficClass("b", 1.0, Fixed(7), Fixed(5)),
    )
    plan = plan_of(load=load, traffic=traffic, limits=Limits(requests=60), seed=4)
    asks = list(PlanFeed(plan).arrivals())
    assert [ask.at_s for ask in asks] == list(islice(offsets(load, 4), 60))
    sessions = SyntheticSessions(traffic, 4)
    for ask in asks:
        session = sessions.session(ask.number)
        assert ask.traffic == session.traffic.name
        assert (ask.prompt_tokens, ask.output_tokens) == (
            session.turns[0].input_tokens, session.turns[0].output_tokens,
        )  # fmt: skip
        assert ask.priority == (2 if ask.traffic == "a" else 5)
        assert ask.tenant == ("x" if ask.traffic == "a" else "anonymous")


def test_the_window_and_the_duration_are_the_harnesss() -> None:
    limits = Limits(duration_s=10.0, warmup_s=2.0, cooldown_s=3.0)
    asks = list(PlanFeed(plan_of(load=OpenLoop(1.0, "constant"), limits=limits)).arrivals())
    assert [ask.at_s for ask in asks] == [float(n) for n in range(10)]
    assert [ask.at_s for ask in asks if ask.measured] == [2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_closed_loop_asks_again_when_it_was_answered() -> None:
    feed = PlanFeed(plan_of(load=ClosedLoop(2, ramp_up_s=1.0), limits=Limits(requests=4)))
    first, second = feed.arrivals()
    assert (first.at_s, second.at_s) == (0.0, 0.5)
    third = feed.ended(ended(first), 3.0)
    assert third is not None
    assert (third.number, third.at_s, third.session) == (2, 3.0, 2)
    fourth = feed.ended(ended(second), 4.0)
    assert fourth is not None
    assert feed.ended(ended(third), 5.0) is None


def test_a_refused_client_of_a_closed_loop_does_not_come_back_in_no_time() -> None:
    feed = PlanFeed(plan_of(load=ClosedLoop(1), limits=Limits(duration_s=5.0)))
    (first,) = feed.arrivals()
    second = feed.ended(ended(first, failed=True), 1.0)
    assert second is not None
    assert second.at_s > 1.0


def test_turns_follow_each_other_and_carry_their_history() -> None:
    traffic = TrafficClass(
        input_tokens=Fixed(10), output_tokens=Fixed(6), turns=Fixed(3), think_s=2.0, prefix=Prefix(32, 4)
    )
    plan = plan_of(load=OpenLoop(1.0, "constant"), traffic=(traffic,), limits=Limits(requests=3))
    feed = PlanFeed(plan, block_tokens=16)
    (first,) = feed.arrivals()
    second = feed.ended(ended(first), 5.0)
    assert second is not None
    assert (second.at_s, second.turn, second.session) == (7.0, 1, first.session)
    third = feed.ended(ended(second), 9.0)
    assert third is not None
    assert [ask.prompt_tokens for ask in (first, second, third)] == [42, 58, 74]
    assert feed.ended(ended(third), 12.0) is None
    assert [len(ask.block_ids) for ask in (first, second, third)] == [2, 3, 4]
    assert third.block_ids[:3] == second.block_ids
    assert second.block_ids[:2] == first.block_ids


def test_a_failed_turn_ends_its_session() -> None:
    traffic = TrafficClass(turns=Fixed(3))
    feed = PlanFeed(plan_of(load=OpenLoop(1.0, "constant"), traffic=(traffic,), limits=Limits(requests=3)))
    (first,) = feed.arrivals()
    assert feed.ended(ended(first, failed=True), 1.0) is None


def test_sessions_of_one_prefix_share_its_blocks_and_no_others() -> None:
    traffic = TrafficClass(input_tokens=Fixed(64), prefix=Prefix(64, 2))
    plan = plan_of(load=OpenLoop(1.0, "constant"), traffic=(traffic,), limits=Limits(requests=40))
    asks = list(PlanFeed(plan, block_tokens=16).arrivals())
    starts = {ask.block_ids[:4] for ask in asks}
    assert len(starts) == 2
    assert len({ask.block_ids[4] for ask in asks}) == 40


def test_a_trace_is_replayed_as_it_is() -> None:
    entries = [TraceEntry(0.0, 100, 5, (1, 2), 64), TraceEntry(1.5, 30, 2)]
    plan = plan_of(load=Replay(TraceFile("t")), limits=Limits())
    asks = list(PlanFeed(plan, TraceSessions(entries, TrafficClass())).arrivals())
    assert [(ask.at_s, ask.prompt_tokens, ask.output_tokens) for ask in asks] == [(0.0, 100, 5), (1.5, 30, 2)]
    assert asks[0].block_ids == (1, 2)
    assert asks[0].block_tokens == 64
    assert numbers(asks) == [0, 1]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_number_of_requests_counts_turns(limit: int) -> None:
    traffic = TrafficClass(turns=Fixed(2))
    feed = PlanFeed(
        plan_of(load=OpenLoop(1.0, "constant"), traffic=(traffic,), limits=Limits(requests=limit))
    )
    pending = list(feed.arrivals())
    done = []
    while pending:
        ask = pending.pop()
        done.append(ask)
        follower = feed.ended(ended(ask), ask.at_s + 1.0)
        if follower is not None:
            pending.append(follower)
    assert len(done) == limit
