"""The whole harness against a real server on loopback, for every way an answer can be awkward."""

from __future__ import annotations

import asyncio
import itertools
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
    Slo,
    Target,
    TraceFile,
)
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.records import Status
from llm_runtime.bench.run import Interrupt, Interrupted, run
from llm_runtime.bench.stub import Seen, serve
from llm_runtime.bench.stub_script import Script
from llm_runtime.bench.summary import summarise
from llm_runtime.core.errors import BackendError, BackendUnavailable, ConfigError
from tests.bench.loads import QUICK, SMALL, counting, measure

SLOW_START = Script(role_at_s=0.01, ping_at_s=0.05, first_at_s=0.15, gap_s=0.002)
SLACK_S = 0.5
"""A busy machine may delay a read; a clock stopped by the wrong event would be far earlier."""


COMMON: list[dict[str, Any]] = [
    {},
    {"blanks": 2},
    {"usage": "every"},
    {"tokens_per_event": 5},
    {"tokens_per_event": 2},
]
ONLY_CHAT: list[dict[str, Any]] = [
    {"role_content": "empty"},
    {"role_content": "null"},
    {"num_reasoning": 5},
    {"num_reasoning": 2},
    {"tool": True},
]


@pytest.mark.parametrize(
    ("endpoint", "variant"),
    [*(("chat", v) for v in COMMON + ONLY_CHAT), *(("completions", v) for v in COMMON)],
)
async def test_the_first_token_is_neither_role_nor_comment(endpoint: str, variant: dict[str, Any]) -> None:
    script = replace(SLOW_START, **variant)
    measured = await measure(script, requests=2, target={"endpoint": endpoint})
    for record in measured.records:
        ttft_s = metrics.ttft_s(record)
        assert ttft_s is not None
        assert 0.15 <= ttft_s < 0.15 + SLACK_S
        assert record.completion_tokens == 5
        assert record.num_token_events == -(-5 // script.tokens_per_event)
    assert measured.summary["total_output_tokens"] == 10
    assert measured.summary["failed"] == 0


async def test_a_role_chunk_with_text_is_a_token() -> None:
    measured = await measure(replace(SLOW_START, role_content="text", usage_tokens=6), requests=1)
    ttft_s = metrics.ttft_s(measured.records[0])
    assert ttft_s is not None
    assert 0.01 <= ttft_s < 0.15


async def test_ends_and_gaps_are_those_of_the_server() -> None:
    measured = await measure(replace(QUICK, first_at_s=0.02, gap_s=0.01), requests=2)
    for record in measured.records:
        e2e_s, tpot_s = metrics.e2e_s(record), metrics.tpot_s(record)
        assert e2e_s is not None
        assert tpot_s is not None
        assert 0.06 <= e2e_s < 0.06 + SLACK_S
        assert record.num_token_reads <= 5
        assert sum(record.itls_s) == pytest.approx(tpot_s * 4)


async def test_a_whole_answer_in_one_chunk_has_no_time_per_token() -> None:
    measured = await measure(replace(QUICK, tokens_per_event=5))
    summary = measured.summary
    assert (summary["mean_tpot_ms"], summary["mean_itl_ms"]) == (None, None)
    assert summary["mean_ttft_ms"] is not None
    assert summary["tokens"]["tokens_per_event"] == 5.0
    assert summary["tokens"]["itl_reliable"] is False
    assert any("ITL" in warning for warning in summary["verdict"]["warnings"])


@pytest.mark.parametrize("tokens", [0, 1])
async def test_none_and_one_token(tokens: int) -> None:
    measured = await measure(replace(QUICK, num_tokens=tokens))
    summary = measured.summary
    assert (summary["completed"], summary["total_output_tokens"]) == (4, 4 * tokens)
    assert (summary["mean_tpot_ms"], summary["mean_itl_ms"]) == (None, None)
    assert (summary["mean_ttft_ms"] is None) == (tokens == 0)
    assert summary["mean_e2el_ms"] > 0


async def test_plain_answers_have_an_end_only() -> None:
    measured = await measure(target={"stream": False})
    summary = measured.summary
    assert summary["completed"] == 4
    assert summary["total_output_tokens"] == 20
    assert [summary[f"mean_{name}_ms"] for name in ("ttft", "tpot", "itl")] == [None, None, None]
    assert summary["mean_e2el_ms"] >= 1e3 * QUICK.end_s(5)
    assert measured.seen[0].body.keys().isdisjoint({"stream", "stream_options"})


async def test_without_usage_the_run_is_invalid_and_stops() -> None:
    measured = await measure(replace(QUICK, usage="never"), requests=500)
    assert measured.summary["verdict"]["state"] == "invalid"
    assert measured.summary["total_output_tokens"] == 0
    assert len(measured.seen) < 20


async def test_without_usage_the_warm_up_says_what_to_do() -> None:
    with pytest.raises(BackendError, match="--allow-estimates"):
        await measure(replace(QUICK, usage="never"), warmup=1)


async def test_estimates_are_counted_from_events_and_marked() -> None:
    measured = await measure(replace(QUICK, usage="never"), allow_estimates=True)
    summary = measured.summary
    assert summary["verdict"]["state"] != "invalid"
    assert summary["total_output_tokens"] == 20
    assert summary["tokens"]["num_estimated"] == 4
    assert any("estimates" in warning for warning in summary["verdict"]["warnings"])
    assert all(record.tokens_estimated for record in measured.records)


async def test_usage_wins_over_the_text_and_the_contradiction_is_told() -> None:
    measured = await measure(replace(QUICK, usage_tokens=2))
    assert measured.summary["total_output_tokens"] == 8
    assert measured.summary["tokens"]["num_contradicted"] == 4


@pytest.mark.parametrize(
    ("variant", "error", "code"),
    [
        ({"error_after": 0}, "error_event", "told_to_fail"),
        ({"error_after": 2}, "error_event", "told_to_fail"),
        ({"cut_after": 0, "role_at_s": None}, "connection_lost", None),
        ({"cut_after": 2}, "stream_cut", None),
        ({"finish": False}, "stream_without_finish", None),
        ({"done": False}, "stream_without_done", None),
        ({"status": 429}, "http_429", "told_to_fail"),
        ({"status": 503, "retry_after": "2"}, "http_503", "told_to_fail"),
    ],
)
async def test_failures_are_failures(variant: dict[str, Any], error: str, code: str | None) -> None:
    measured = await measure(replace(QUICK, **variant), slo=Slo(e2e_s=10.0))
    summary = measured.summary
    assert (summary["num_prompts"], summary["completed"], summary["failed"]) == (4, 0, 4)
    assert summary["errors"] == {error: 4}
    assert summary["error_codes"] == ({code: 4} if code else {})
    assert (summary["mean_ttft_ms"], summary["mean_e2el_ms"]) == (None, None)
    assert summary["goodput"]["share_of_all"] == 0.0
    assert summary["verdict"]["state"] == "failed"
    assert all(record.finished_at is not None for record in measured.records)
    if variant.get("retry_after"):
        assert {record.retry_after_s for record in measured.records} == {2.0}


async def test_half_of_the_answers_fail_and_stay_in_the_denominator() -> None:
    scripts = itertools.cycle([replace(QUICK, status=500), QUICK])

    def on_request(_: Seen) -> None:
        stub.script = next(scripts)  # of the next request

    async with serve(QUICK, on_request) as stub:
        plan = Plan(
            Target(f"http://127.0.0.1:{stub.port}"),
            ClosedLoop(1),
            (SMALL,),
            Limits(requests=10, warmup_requests=0),
            Slo(ttft_s=10.0),
        )
        summary = summarise(await run(plan))
    assert (summary["completed"], summary["failed"]) == (5, 5)
    assert summary["goodput"]["share_of_all"] == 0.5
    assert summary["counting_failures"]["failed_share"] == 0.5
    assert summary["counting_failures"]["median_ttft_ms"] is None
    assert summary["http_statuses"] == {"200": 5, "500": 5}
    assert summary["verdict"]["state"] != "failed"


async def test_a_request_that_takes_too_long_fails_and_lets_its_place_go() -> None:
    measured = await measure(replace(QUICK, first_at_s=30.0), requests=2, target={"timeout_s": 0.05})
    assert measured.summary["errors"] == {"timeout": 2}
    assert measured.result.end_s < 10


async def test_answers_that_outlast_the_drain_have_failed() -> None:
    limits = Limits(requests=3, warmup_requests=0, drain_timeout_s=0.05)
    measured = await measure(
        replace(QUICK, first_at_s=30.0), load=OpenLoop(float("inf"), max_in_flight=2), limits=limits
    )
    assert measured.summary["errors"] == {"drain_timeout": 3}
    assert [record.started_at is None for record in measured.records] == [False, False, True]


async def test_nobody_listens() -> None:
    async with serve() as stub:
        port = stub.port
    with pytest.raises(BackendUnavailable, match="no server answers"):
        await run(Plan(Target(f"http://127.0.0.1:{port}")))


async def test_a_warm_up_that_always_fails_ends_the_run_before_it_began() -> None:
    with pytest.raises(BackendError, match="http_503: the stub was told to fail"):
        await measure(replace(QUICK, status=503), warmup=2)


async def test_the_warm_up_is_not_recorded_and_says_other_words() -> None:
    measured = await measure(requests=3, warmup=2)
    assert len(measured.records) == 3
    prompts = [request.body["messages"][0]["content"] for request in measured.seen]
    assert len(prompts) == len(set(prompts)) == 5


# Loads


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
