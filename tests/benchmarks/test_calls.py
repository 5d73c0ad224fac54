"""What the load learns from an answer, whatever way it is cut and respelt."""

from __future__ import annotations

import json
from time import monotonic

import pytest

from benchmarks.overhead.calls import PlainCall, StreamCall, Tally
from benchmarks.overhead.connections import Connection


def event(content: str | None, finish: str | None = None, separators: tuple[str, str] = (",", ":")) -> bytes:
    delta = {} if content is None else {"content": content}
    chunk = {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(chunk, separators=separators).encode() + b"\n\n"


def stamp(at: float | None = None) -> str:
    return f" {int((monotonic() if at is None else at) * 1e6):015d}"


def stream(num_tokens: int, separators: tuple[str, str] = (",", ":")) -> bytes:
    tokens = [event(stamp(), None, separators) for _ in range(num_tokens - 1)]
    tokens.append(event(stamp(), "length", separators))
    return b"".join(tokens) + b"data: [DONE]\n\n"


def call_of(num_tokens: int, tally: Tally | None = None) -> StreamCall:
    ends: list[Connection | None] = []
    call = StreamCall(b"", tally or Tally(measuring=True), ends.append, num_tokens)
    call.status = 200
    return call


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_tokens_are_counted_however_the_stream_is_cut(separators: tuple[str, str]) -> None:
    body = stream(3, separators)
    for cut in range(1, len(body)):
        call = call_of(3)
        call.feed(body[:cut])
        call.feed(body[cut:])
        assert call.verdict() is None, cut
        assert call.tally.num_tokens == 3, cut
        assert len(call.tally.delays_s) == 3
        assert len(call.tally.ttfts_s) == 1


def test_delay_is_the_time_since_the_stub_wrote_the_token() -> None:
    call = call_of(1)
    call.feed(event(stamp(monotonic() - 0.5), "length"))
    assert 0.5 <= call.tally.delays_s[0] < 1.5


def test_tokens_outside_the_window_count_for_the_verdict_only() -> None:
    tally = Tally(measuring=False)
    call = call_of(2, tally)
    call.feed(event(stamp()))
    tally.measuring = True
    call.feed(event(stamp(), "length") + b"data: [DONE]\n\n")
    assert call.verdict() is None
    assert (tally.num_tokens, len(tally.itls_s)) == (1, 1)
    assert not tally.ttfts_s  # it was due before the window


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (stream(2), "tokens lost or doubled"),
        (stream(4), "tokens lost or doubled"),
        (stream(3).removesuffix(b"data: [DONE]\n\n"), "no [DONE]"),
        (stream(3).replace(b'"length"', b"null"), "no finish reason"),
    ],
)
def test_a_stream_that_is_not_whole_is_a_failure(body: bytes, problem: str) -> None:
    call = call_of(3)
    call.feed(body)
    assert call.verdict() == problem
    call.end(None, problem)
    call.end(None, "twice")
    assert call.tally.failures == {problem: 1}


def test_refusals_are_failures_by_status() -> None:
    for call in (call_of(3), PlainCall(b"", Tally(), lambda _: None)):
        call.status = 429
        call.feed(b'{"error": {}}')
        assert call.verdict() == "status 429"


def test_a_plain_reply_is_whole_with_its_usage() -> None:
    tally = Tally(measuring=True)
    call = PlainCall(b"", tally, lambda _: None)
    call.status = 200
    call.feed(b'{"usage": {"completion_')
    call.feed(b'tokens": 64}}')
    assert call.verdict() is None
    assert tally.num_plain == 1
    other = PlainCall(b"", tally, lambda _: None)
    other.status = 200
    other.feed(b'{"usage": {"completion_tokens": 640}}')
    assert other.verdict() == "a reply without its usage"
