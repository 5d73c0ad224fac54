"""Loads of every shape, as they arrive at a real server on loopback, and runs that are stopped."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from llm_runtime.bench import metrics
from llm_runtime.bench.config import (
    ClosedLoop,
    Limits,
    OpenLoop,
    Plan,
    Replay,
    Segment,
    Target,
    TraceFile,
)
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.records import Status
from llm_runtime.bench.run import Interrupt, Interrupted, run
from llm_runtime.bench.stub import serve
from llm_runtime.bench.summary import summarise
from llm_runtime.core.errors import ConfigError
from tests.bench.loads import QUICK, SMALL, counting, measure

SLACK_S = 0.5


async def test_a_closed_loop_keeps_its_concurrency_and_no_more() -> None:
    measured = await measure(requests=24, load=ClosedLoop(4))
    assert metrics.peak_in_flight(measured.records) == 4
    assert measured.summary["max_concurrency"] == 4
    assert measured.summary["request_rate"] == "inf"
    later = measured.records[4:]
    ends = {record.finished_at for record in measured.records}
    assert all(record.scheduled_at in ends for record in later)
    assert measured.result.num_connects <= 5


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    script = replace(QUICK, first_at_s=0.3)
    measured = await measure(script, requests=20, load=OpenLoop(200.0, "constant"))
    assert [record.scheduled_at for record in measured.records] == pytest.approx([n / 200 for n in range(20)])
    assert metrics.peak_in_flight(measured.records) == 20


async def test_waiting_under_the_clients_cap_counts_and_is_shown_apart() -> None:
    """Six at once, two places, 50 ms each: they end after 50, 50, 100, 100, 150, 150 ms, not after 50."""
    script = replace(QUICK, first_at_s=0.05, num_tokens=1)
    measured = await measure(script, requests=6, load=OpenLoop(float("inf"), max_in_flight=2))
    ends = sorted(metrics.values(measured.records, metrics.e2e_s))
    waits = sorted(metrics.values(measured.records, metrics.client_wait_s))
    for position, (end_s, wait_s) in enumerate(zip(ends, waits, strict=True)):
        round_s = 0.05 * (position // 2)
        assert round_s <= wait_s < round_s + SLACK_S
        assert 0.05 + round_s <= end_s < 0.05 + round_s + SLACK_S
    assert metrics.peak_in_flight(measured.records) == 2
    assert measured.summary["max_concurrency"] == 2
    # Only the cap's waiting is in it, not the client's lateness.
    assert measured.summary["waiting"]["client_wait"]["max_ms"] >= 100.0


async def test_who_has_no_token_in_time_leaves_and_who_has_one_stays() -> None:
    """Servers that understand it are told. The answer of the second load takes longer than patience lasts."""
    hurried = replace(SMALL, patience_s=0.2)
    measured = await measure(replace(QUICK, first_at_s=30.0), traffic=(hurried,))
    assert {record.error for record in measured.records} == {"timeout"}
    assert all(0.2 <= (record.finished_at or 0) - record.scheduled_at < 5 for record in measured.records)
    assert {request.headers[b"x-slo-ttft-ms"] for request in measured.seen} == {b"200"}
    slow = await measure(replace(QUICK, gap_s=0.1), traffic=(hurried,))
    assert all(record.status is Status.COMPLETED for record in slow.records)
    assert min(metrics.values(slow.records, metrics.e2e_s)) > 0.2
    assert b"x-slo-ttft-ms" not in (await measure()).seen[0].headers


async def test_one_seed_sends_the_same_load_and_another_salt_other_words() -> None:
    load = OpenLoop(500.0, "gamma", 0.5)
    traffic = (SMALL, replace(SMALL, name="other", input_tokens=Fixed(3)))
    first, again, salted = [
        await measure(requests=12, load=load, traffic=traffic, seed=3, salt=salt) for salt in ("a", "a", "b")
    ]
    for other in (again, salted):
        assert [r.scheduled_at for r in first.records] == [r.scheduled_at for r in other.records]
        assert [r.traffic for r in first.records] == [r.traffic for r in other.records]

    def prompts(of: Any) -> set[str]:
        return {request.body["messages"][0]["content"] for request in of.seen}

    assert prompts(first) == prompts(again)
    assert prompts(first).isdisjoint(prompts(salted))


async def test_a_load_by_time_ends_and_measures_its_window_only() -> None:
    limits = Limits(duration_s=0.5, warmup_requests=0, warmup_s=0.2, cooldown_s=0.1)
    measured = await measure(load=OpenLoop(100.0, "constant"), limits=limits)
    assert [record.number for record in measured.records if record.measured] == list(range(20, 40))
    assert len(measured.records) == 50
    assert measured.summary["num_prompts"] == 20
    assert measured.summary["steady"]["from_s"] == 0.2
    assert measured.summary["steady"]["to_s"] == pytest.approx(0.4)


async def test_a_closed_loop_by_time_ends() -> None:
    limits = Limits(duration_s=0.2, warmup_requests=0)
    measured = await measure(load=ClosedLoop(3, ramp_up_s=0.1), limits=limits)
    assert all(record.scheduled_at < 0.2 for record in measured.records)
    assert sorted(record.scheduled_at for record in measured.records)[:1] == [0.0]
    firsts = sorted(record.scheduled_at for record in measured.records if record.session < 3)
    assert firsts[1] > 0


async def test_a_profile_is_followed() -> None:
    profile = (Segment(0.1, 100.0, 100.0), Segment(0.1, 0.0, 0.0))
    measured = await measure(load=OpenLoop(process="constant", profile=profile), requests=20)
    assert all(record.scheduled_at % 0.2 < 0.1 + 1e-9 for record in measured.records)
    assert measured.summary["request_rate"] is None


async def test_a_conversation_carries_its_answers_and_waits_between_turns() -> None:
    traffic = replace(SMALL, turns=Fixed(3), think_s=0.03)
    measured = await measure(requests=6, load=ClosedLoop(1), traffic=(traffic,))
    talk = [request.body["messages"] for request in measured.seen]
    assert [len(messages) for messages in talk] == [1, 3, 5, 1, 3, 5]
    assert talk[2][:2] == talk[1][:2]
    assert [message["role"] for message in talk[2]] == ["user", "assistant", "user", "assistant", "user"]
    assert talk[1][1]["content"] == "word " * 5
    first, second = measured.records[:2]
    assert first.finished_at is not None
    assert second.scheduled_at == pytest.approx(first.finished_at + 0.03)
    assert [record.turn for record in measured.records] == [0, 1, 2, 0, 1, 2]


async def test_a_conversation_ends_with_its_first_failure() -> None:
    traffic = replace(SMALL, turns=Fixed(3))
    measured = await measure(replace(QUICK, done=False), requests=3, load=ClosedLoop(1), traffic=(traffic,))
    assert len(measured.records) == 1
    assert measured.result.num_abandoned_turns == 2


async def test_classes_bear_their_tenant_and_priority_and_have_figures_of_their_own() -> None:
    traffic = (
        replace(SMALL, name="chat", share=3.0, priority=1, tenant="alice"),
        replace(SMALL, name="batch", priority=8, tenant="bob", api_key="bobs"),
    )
    measured = await measure(requests=40, traffic=traffic, load=ClosedLoop(8))
    by_tenant = {request.headers[b"x-tenant-id"]: request for request in measured.seen}
    assert by_tenant[b"alice"].body["priority"] == 1
    assert by_tenant[b"bob"].headers[b"authorization"] == b"Bearer bobs"
    classes = measured.summary["classes"]
    assert classes["chat"]["num_prompts"] + classes["batch"]["num_prompts"] == 40
    assert classes["chat"]["mean_ttft_ms"] > 0
    assert "bobs" not in str(measured.summary)


async def test_a_replay_is_due_when_the_trace_says(tmp_path: Any) -> None:
    path = tmp_path / "trace.csv"
    rows = "\n".join(f"2024-01-01 00:00:0{second}.5,{10 * second + 10},3" for second in range(4))
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n")
    trace = TraceFile(str(path), time_scale=0.02, length_scale=0.5)
    measured = await measure(load=Replay(trace), limits=Limits(warmup_requests=1))
    assert [record.scheduled_at for record in measured.records] == pytest.approx([0.0, 0.02, 0.04, 0.06])
    assert [record.prompt_tokens for record in measured.records] == [5, 10, 15, 20]
    assert {record.completion_tokens for record in measured.records} == {2}
    assert measured.summary["trace"]["num_requests"] == 4
    assert str(tmp_path) not in str(measured.summary)


async def test_a_plan_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="no end"):
        await run(Plan(Target("http://127.0.0.1:1"), limits=Limits()))


# Interruption


async def test_what_was_measured_before_an_interruption_is_kept() -> None:
    interrupt = Interrupt()
    async with serve(QUICK, counting(12, interrupt.request)) as stub:
        plan = Plan(Target(f"http://127.0.0.1:{stub.port}"), ClosedLoop(3), (SMALL,), Limits(requests=1000))
        result = await asyncio.wait_for(run(plan, interrupt=interrupt), 20)
    states = [record.status for record in result.records]
    assert states.count(Status.COMPLETED) >= 8
    assert 1 <= states.count(Status.INTERRUPTED) <= 3
    summary = summarise(result)
    assert summary["verdict"]["interrupted"]
    assert summary["num_prompts"] == summary["completed"] == states.count(Status.COMPLETED)
    assert summary["failed"] == 0


async def test_an_interruption_wakes_an_open_loop_that_sleeps() -> None:
    interrupt = Interrupt()
    async with serve(QUICK, counting(3, interrupt.request)) as stub:
        plan = Plan(
            Target(f"http://127.0.0.1:{stub.port}"),
            OpenLoop(profile=(Segment(0.1, 50.0, 50.0), Segment(600.0, 0.0, 0.0)), process="constant"),
            (SMALL,),
            Limits(requests=1000, warmup_requests=0),
        )
        result = await asyncio.wait_for(run(plan, interrupt=interrupt), 20)
    assert result.interrupted
    assert len(result.records) >= 2


async def test_an_interruption_in_the_warm_up_leaves_nothing() -> None:
    interrupt = Interrupt()
    async with serve(replace(QUICK, first_at_s=30.0), counting(1, interrupt.request)) as stub:
        plan = Plan(Target(f"http://127.0.0.1:{stub.port}"), traffic=(SMALL,))
        with pytest.raises(Interrupted):
            await asyncio.wait_for(run(plan, interrupt=interrupt), 20)
