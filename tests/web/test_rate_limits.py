"""`x-ratelimit-*` as OpenAI writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.core.standing import Places, Standing, Window
from llm_runtime.web.rate_limits import RATE_LIMIT_HEADERS, rate_limit_headers, span
from tests.support.tenants import seconds


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0.0, "0s"), (0.0001, "1ms"), (0.012, "12ms"), (0.9991, "1s"), (1.0, "1s"), (1.2, "2s"), (59.0, "59s"),
     (60.0, "1m0s"), (360.0, "6m0s"), (3599.5, "1h0m0s"), (3723.0, "1h2m3s")],
)  # fmt: skip
def test_durations(duration_s: float, text: str) -> None:
    assert span(duration_s) == text


@given(st.floats(0, 1e6))
def test_a_duration_is_never_told_too_short_nor_a_second_too_long(duration_s: float) -> None:
    assert duration_s <= seconds(span(duration_s)) + 1e-9
    assert seconds(span(duration_s)) < duration_s + 1


def test_a_full_standing() -> None:
    standing = Standing(Window(60, 59, 1.0), Window(40_000, 39_000, 1.5), Places(8, 7))
    assert dict(rate_limit_headers(standing)) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1s",
        b"x-ratelimit-limit-tokens": b"40000",
        b"x-ratelimit-remaining-tokens": b"39000",
        b"x-ratelimit-reset-tokens": b"2s",
        b"x-ratelimit-limit-concurrency": b"8",
        b"x-ratelimit-remaining-concurrency": b"7",
    }
    assert {name.decode() for name, _ in rate_limit_headers(standing)} == set(RATE_LIMIT_HEADERS)


def test_only_what_is_limited_is_told() -> None:
    assert rate_limit_headers(None) == []
    assert rate_limit_headers(Standing()) == []
    names = [name for name, _ in rate_limit_headers(Standing(tokens=Window(9, 0, 60.0)))]
    assert names == [
        b"x-ratelimit-limit-tokens",
        b"x-ratelimit-remaining-tokens",
        b"x-ratelimit-reset-tokens",
    ]
