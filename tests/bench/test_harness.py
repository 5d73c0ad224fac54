"""The whole harness against a real server on loopback, for every way an answer can be awkward."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from llm_runtime.bench import driver, metrics
from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.config import (
    ClosedLoop,
    Limits,
    OpenLoop,
    Plan,
    Slo,
    Target,
)
from llm_runtime.bench.exchange import LoadExchange
from llm_runtime.bench.run import run
from llm_runtime.bench.stub import Seen, serve
from llm_runtime.bench.stub_script import Script
from llm_runtime.bench.summary import summarise
from llm_runtime.bench.supply import Ask, Supply
from llm_runtime.core.errors import BackendError, BackendUnavailable
from tests.bench.loads import QUICK, SMALL, measure

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
async def test_f47_the_first_token_is_neither_role_nor_comment(
    endpoint: str, variant: dict[str, Any]
) -> None:
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


async def test_f47_a_role_chunk_with_text_is_a_token() -> None:
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


async def test_f47_a_whole_answer_in_one_chunk_has_no_time_per_token() -> None:
    measured = await measure(replace(QUICK, tokens_per_event=5))
    summary = measured.summary
    assert (summary["mean_tpot_ms"], summary["mean_itl_ms"]) == (None, None)
    assert summary["mean_ttft_ms"] is not None
    assert summary["tokens"]["tokens_per_event"] == 5.0
    assert summary["tokens"]["itl_reliable"] is False
    assert any("ITL" in warning for warning in summary["verdict"]["warnings"])


@pytest.mark.parametrize("tokens", [0, 1])
async def test_f49_f_g_none_and_one_token(tokens: int) -> None:
    measured = await measure(replace(QUICK, num_tokens=tokens))
    summary = measured.summary
    assert (summary["completed"], summary["total_output_tokens"]) == (4, 4 * tokens)
    assert (summary["mean_tpot_ms"], summary["mean_itl_ms"]) == (None, None)
    assert (summary["mean_ttft_ms"] is None) == (tokens == 0)
    assert summary["mean_e2el_ms"] > 0


async def test_f47_plain_answers_have_an_end_only() -> None:
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


async def test_f49_e_estimates_are_counted_from_events_and_marked() -> None:
    measured = await measure(replace(QUICK, usage="never"), allow_estimates=True)
    summary = measured.summary
    assert summary["verdict"]["state"] != "invalid"
    assert summary["total_output_tokens"] == 20
    assert summary["tokens"]["num_estimated"] == 4
    assert any("estimates" in warning for warning in summary["verdict"]["warnings"])
    assert all(record.tokens_estimated for record in measured.records)


async def test_f49_i_usage_wins_over_the_text_and_the_contradiction_is_told() -> None:
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


async def test_f49_j_nobody_listens() -> None:
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


async def test_an_open_loop_builds_ahead_and_nothing_between_an_instant_and_its_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    build, send = Supply.ask, LoadClient.send

    def building(self: Supply, *args: Any) -> Ask:
        told.append("build")
        return build(self, *args)

    def sending(self: LoadClient, *args: Any, **named: Any) -> LoadExchange:
        told.append("send")
        return send(self, *args, **named)

    monkeypatch.setattr(driver, "BUILT_AHEAD", 2)
    monkeypatch.setattr(Supply, "ask", building)
    monkeypatch.setattr(LoadClient, "send", sending)
    await measure(requests=5, load=OpenLoop(50.0, "constant"))
    assert told == ["build", "build", *["send", "build"] * 3, "send", "send"]
