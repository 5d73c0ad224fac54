"""Every figure against exact values, and what happens where it is undefined."""

from __future__ import annotations

import pytest

from llm_runtime.bench import metrics
from llm_runtime.bench.config import Slo
from llm_runtime.bench.records import Status
from tests.bench.builders import answered, failed, whole


def test_latencies_count_from_the_scheduled_arrival() -> None:
    record = whole()
    assert metrics.ttft_s(record) == 1.0
    assert metrics.e2e_s(record) == 2.5
    assert metrics.tpot_s(record) == 0.25
    assert metrics.itls_s(record) == (0.25, 0.25, 0.25, 0.25)


def test_what_the_client_did_is_told_apart() -> None:
    record = whole()
    assert metrics.schedule_lag_s(record) == 0.125
    assert metrics.client_wait_s(record) == 0.125
    assert metrics.connect_s(record) == 0.125


@pytest.mark.parametrize("tokens", [0, 1, None])
def test_no_time_per_output_token_below_two_tokens(tokens: int | None) -> None:
    assert metrics.tpot_s(whole(completion_tokens=tokens)) is None


def test_no_time_per_output_token_when_one_read_brought_all() -> None:
    bundled = whole(itls_s=(), last_token_at=2.0, completion_tokens=100)
    assert metrics.tpot_s(bundled) is None
    assert metrics.ttft_s(bundled) == 1.0


def test_f49_a_b_c_d_fewer_reads_than_tokens_give_the_same_time_per_token() -> None:
    assert metrics.tpot_s(whole(itls_s=(1.0,), num_token_events=2)) == 0.25


def test_an_answer_without_tokens_has_an_end_and_no_first_token() -> None:
    empty = whole(first_token_at=None, last_token_at=None, itls_s=(), completion_tokens=0, num_token_events=0)
    assert metrics.ttft_s(empty) is None
    assert metrics.e2e_s(empty) == 2.5


def test_f47_a_failure_has_no_latency_although_tokens_came() -> None:
    broken = whole(status=Status.FAILED, error="stream_cut")
    assert [of(broken) for of in (metrics.ttft_s, metrics.e2e_s, metrics.tpot_s)] == [None, None, None]
    assert metrics.itls_s(broken) == ()


def test_figures_are_of_the_window_and_without_what_the_user_stopped() -> None:
    records = [
        whole(number=2, scheduled_at=3.0),
        whole(number=1, scheduled_at=2.0, measured=False),
        whole(number=0, status=Status.INTERRUPTED),
        failed(number=3, scheduled_at=2.5),
    ]
    assert [record.number for record in metrics.measured(records)] == [3, 2]


def test_rates_are_over_the_time_to_the_last_end_failures_included() -> None:
    records = [whole(finished_at=3.5), whole(finished_at=9.0), failed(finished_at=11.0)]
    rates = metrics.rates(records, Slo(), from_s=1.0)
    assert rates.duration_s == 10.0
    assert (rates.num_requests, rates.num_completed, rates.num_failed) == (3, 2, 1)
    assert rates.per_second(rates.num_completed) == 0.2
    assert rates.per_second(rates.output_tokens) == 1.0
    assert rates.input_tokens == 20
    assert (rates.num_good, rates.goodput_share) == (None, None)


def test_rates_of_nothing_are_undefined() -> None:
    rates = metrics.rates([], Slo(ttft_s=1.0))
    assert rates.per_second(rates.num_completed) is None
    assert rates.goodput_share is None


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft_s=1.0), True),
        (Slo(ttft_s=0.99), False),
        (Slo(e2e_s=2.5), True),
        (Slo(e2e_s=2.49), False),
        (Slo(tpot_s=0.25), True),
        (Slo(tpot_s=0.24), False),
        (Slo(ttft_s=1.0, tpot_s=0.25, e2e_s=2.49), False),
    ],
)
def test_good_is_within_every_objective(slo: Slo, good: bool) -> None:
    assert metrics.is_good(whole(), slo) is good


def test_good_where_a_figure_is_undefined() -> None:
    assert metrics.is_good(whole(completion_tokens=1, itls_s=()), Slo(tpot_s=0.1))
    assert not metrics.is_good(whole(first_token_at=None, itls_s=()), Slo(ttft_s=10.0))
    assert not metrics.is_good(failed(), Slo(ttft_s=10.0))


def test_goodput_is_a_share_of_all_requests() -> None:
    records = [answered(0.0, 0.5), answered(0.0, 2.0), failed(), failed()]
    rates = metrics.rates(records, Slo(ttft_s=1.0))
    assert rates.goodput_share == 0.25
    assert rates.per_second(rates.num_good) == 0.5
    assert rates.good_output_tokens == 1


def test_tokens_within_a_stretch_of_time() -> None:
    """Tokens at 0.5, 1.5, 2.5: one read each, but six tokens by usage, two per read."""
    record = answered(0.0, 0.5, (1.0, 1.0), completion_tokens=6)
    assert metrics.tokens_within([record], 0.0, 2.0) == 4.0
    assert metrics.tokens_within([record], 1.5, 2.5) == 2.0


def test_tokens_of_a_plain_answer_come_at_its_end() -> None:
    record = whole(stream=False, first_token_at=None, last_token_at=None, itls_s=())
    assert metrics.tokens_within([record], 3.5, 4.0) == 5.0
    assert metrics.tokens_within([record], 0.0, 3.5) == 0.0


def test_f49_the_peak_is_never_below_the_mean() -> None:
    record = answered(0.0, 0.1, (0.1,) * 9)  # 10 tokens by 1.0
    assert metrics.peak_output_rate([record], 0.0, 0.5) == 20.0
    assert metrics.peak_output_rate([record], 0.0, 2.5) == pytest.approx(8.0)
    assert metrics.peak_output_rate([record], 0.0, 0.0) is None
    assert metrics.peak_output_rate([], 0.0, 3.0) == 0.0


def test_requests_in_flight_over_time() -> None:
    records = [answered(0.0, 2.0), answered(1.0, 2.0), answered(2.0, 2.0)]
    assert metrics.in_flight(records) == [(0.0, 1), (1.0, 2), (2.0, 1), (2.0, 2), (3.0, 1), (4.0, 0)]
    assert metrics.peak_in_flight(records) == 2
    assert metrics.peak_in_flight([]) == 0


@pytest.mark.parametrize(
    ("events", "reads", "tokens", "reliable"),
    [
        (100, 100, 100, True),
        (99, 99, 100, True),
        (25, 25, 100, False),
        (100, 90, 100, False),
        (1, 1, 1, True),
    ],
)
def test_gaps_are_between_tokens_only_if_each_token_had_a_read(
    events: int, reads: int, tokens: int, reliable: bool
) -> None:
    record = answered(0.0, 1.0, (0.1,) * (reads - 1), completion_tokens=tokens, num_token_events=events)
    found = metrics.token_facts([record])
    assert found.itl_reliable is reliable
    assert found.tokens_per_event == tokens / events
    assert found.tokens_per_read == tokens / reads


def test_usage_that_contradicts_the_text_is_counted() -> None:
    records = [whole(), whole(completion_tokens=4), whole(completion_tokens=0), whole(completion_tokens=None)]
    found = metrics.token_facts(records)
    assert found.num_contradicted == 2
    assert found.num_without_usage == 1


def test_prompt_tokens_against_those_aimed_at() -> None:
    found = metrics.token_facts(
        [whole(prompt_tokens=12), whole(prompt_tokens=8), whole(intended_tokens=None)]
    )
    assert found.prompt_ratio == 20 / 16


def test_words_are_counted_the_most_frequent_first() -> None:
    records = [whole(), failed(), failed(), failed(error="timeout")]
    assert list(metrics.counted(records, lambda record: record.error).items()) == [
        ("http_503", 2),
        ("timeout", 1),
    ]
