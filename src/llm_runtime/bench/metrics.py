"""What every figure means: pure functions over records. Seconds; None where a figure is undefined.

    TTFT   first token - scheduled arrival; streams only
    E2E    end of the answer - scheduled arrival
    TPOT   (last token - first token) / (completion tokens - 1); from 2 tokens in 2 reads on
    ITL    gap between two reads that brought tokens, pooled over requests

The scheduled arrival is when the request was due, so waiting in the client counts. Latencies exist
for completed requests only; everything that is a share or a rate of requests counts failed ones in
its denominator. Requests given up because the user stopped the run, and those outside the measured
window, are in no figure: `measured` is where they leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from llm_runtime.bench.config import Slo
from llm_runtime.bench.records import RequestRecord, Status

RELIABLE_SHARE = 0.98
"""Of output tokens that must have come in a read of their own for ITL to be a gap between tokens."""


def measured(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Completed and failed requests of the measured window, in the order they were due."""
    chosen = [r for r in records if r.measured and r.status is not Status.INTERRUPTED]
    return sorted(chosen, key=lambda record: (record.scheduled_at, record.number))


def completed(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    return [record for record in records if record.status is Status.COMPLETED]


# Latencies of one request


def ttft_s(record: RequestRecord) -> float | None:
    if record.first_token_at is None or record.status is not Status.COMPLETED:
        return None
    return record.first_token_at - record.scheduled_at


def e2e_s(record: RequestRecord) -> float | None:
    if record.finished_at is None or record.status is not Status.COMPLETED:
        return None
    return record.finished_at - record.scheduled_at


def tpot_s(record: RequestRecord) -> float | None:
    """Undefined below two tokens, and when one read brought them all: then no time lies between."""
    tokens = record.completion_tokens
    if record.status is not Status.COMPLETED or tokens is None or tokens < 2 or not record.itls_s:
        return None
    assert record.first_token_at is not None
    assert record.last_token_at is not None
    return (record.last_token_at - record.first_token_at) / (tokens - 1)


def itls_s(record: RequestRecord) -> tuple[float, ...]:
    return record.itls_s if record.status is Status.COMPLETED else ()


def client_wait_s(record: RequestRecord) -> float | None:
    """Waiting under the client's own cap; part of TTFT and E2E, and shown apart."""
    if record.started_at is None or record.released_at is None:
        return None
    return record.started_at - record.released_at


def schedule_lag_s(record: RequestRecord) -> float | None:
    """How late the client itself was: actual start - scheduled, its cap's waiting left out."""
    if record.released_at is None:
        return None
    return record.released_at - record.scheduled_at


def connect_s(record: RequestRecord) -> float | None:
    """From the start of the request to its writing: the time a new connection took, else nearly 0."""
    if record.started_at is None or record.sent_at is None:
        return None
    return record.sent_at - record.started_at


def values(records: Iterable[RequestRecord], of: Callable[[RequestRecord], float | None]) -> list[float]:
    return [value for record in records if (value := of(record)) is not None]


# Objectives


def is_good(record: RequestRecord, slo: Slo) -> bool:
    """Completed and within every objective given. An undefined TPOT is within: nobody waited between
    tokens. An undefined TTFT is not: no token was seen to come."""
    if record.status is not Status.COMPLETED:
        return False
    tpot = tpot_s(record)
    return (
        _within(ttft_s(record), slo.ttft_s)
        and _within(e2e_s(record), slo.e2e_s)
        and (slo.tpot_s is None or tpot is None or tpot <= slo.tpot_s)
    )


def _within(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value <= limit)


# Rates


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second of duration_s, which lasts from the window's start to the last end, drain included.

    goodput, goodput_share: None without objectives; the share is of all measured requests.
    """

    duration_s: float
    num_requests: int
    num_completed: int
    num_failed: int
    input_tokens: int
    output_tokens: int
    num_good: int | None
    good_output_tokens: int | None

    def per_second(self, amount: float | None) -> float | None:
        return amount / self.duration_s if amount is not None and self.duration_s > 0 else None

    @property
    def goodput_share(self) -> float | None:
        if self.num_good is None or not self.num_requests:
            return None
        return self.num_good / self.num_requests


def rates(records: Sequence[RequestRecord], slo: Slo, from_s: float = 0.0) -> Rates:
    """records: as `measured` returns them; from_s: start of the window."""
    done = completed(records)
    good = [record for record in done if is_good(record, slo)] if slo else None
    return Rates(
        duration_s=max((record.finished_at or 0.0 for record in records), default=from_s) - from_s,
        num_requests=len(records),
        num_completed=len(done),
        num_failed=len(records) - len(done),
        input_tokens=sum(record.prompt_tokens or 0 for record in done),
        output_tokens=_tokens(done),
        num_good=None if good is None else len(good),
        good_output_tokens=None if good is None else _tokens(good),
    )


def tokens_within(records: Iterable[RequestRecord], from_s: float, to_s: float) -> float:
    """Output tokens that came in [from_s, to_s), of all requests, each read bringing an equal part.

    For a rate while the load lasted, without the drain; requests outside the window count, because
    the server worked for them too.
    """
    total = 0.0
    for record in records:
        instants = token_instants(record)
        if instants and record.completion_tokens:
            inside = sum(from_s <= at < to_s for at in instants)
            total += record.completion_tokens * inside / len(instants)
    return total


def token_instants(record: RequestRecord) -> list[float]:
    """Instants of the reads that brought tokens; of a plain answer its end."""
    if record.first_token_at is None:
        plain = not record.stream and record.finished_at is not None
        return [record.finished_at] if plain and record.finished_at is not None else []
    instants = [record.first_token_at]
    for gap in record.itls_s:
        instants.append(instants[-1] + gap)
    return instants


def peak_output_rate(records: Sequence[RequestRecord], from_s: float, to_s: float) -> float | None:
    """Tokens per second of the fullest of equal bins of at least 1 s; never below the mean rate."""
    length_s = to_s - from_s
    if length_s <= 0:
        return None
    num_bins = max(1, int(length_s))
    width_s = length_s / num_bins
    bins = [0.0] * num_bins
    for record in records:
        instants = token_instants(record)
        for at in instants:
            position = min(num_bins - 1, int((at - from_s) / width_s))
            if position >= 0:
                bins[position] += (record.completion_tokens or 0) / len(instants)
    return max(bins) / width_s


def peak_in_flight(records: Iterable[RequestRecord]) -> int:
    """The most requests that were with the server at one moment."""
    return max((level for _, level in in_flight(records)), default=0)


def in_flight(records: Iterable[RequestRecord]) -> list[tuple[float, int]]:
    """(instant, requests with the server from then on), ascending."""
    changes: list[tuple[float, int]] = []
    for record in records:
        if record.started_at is not None and record.finished_at is not None:
            changes += [(record.started_at, 1), (record.finished_at, -1)]
    level, levels = 0, []
    for at, change in sorted(changes):
        level += change
        levels.append((at, level))
    return levels


# Tokens


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """How far tokens can be told from what came over the wire.

    itl_reliable: whether nearly every token had a read of its own, so that gaps are between tokens.
    num_contradicted: answers with more events of text than their usage admits tokens.
    prompt_ratio: prompt tokens of the server by those aimed at, chat template included.
    """

    num_estimated: int
    num_without_usage: int
    num_contradicted: int
    tokens_per_event: float | None
    tokens_per_read: float | None
    itl_reliable: bool | None
    prompt_ratio: float | None


def token_facts(records: Sequence[RequestRecord]) -> TokenFacts:
    done = completed(records)
    streamed = [r for r in done if r.stream and r.completion_tokens]
    tokens, reads = _tokens(streamed), sum(r.num_token_reads for r in streamed)
    events = sum(r.num_token_events for r in streamed)
    # The end token of an answer carries no text on most engines.
    alone = sum(min(r.num_token_reads + 1, r.completion_tokens or 0) for r in streamed)
    aimed = [r for r in done if r.intended_tokens and r.prompt_tokens is not None]
    aimed_tokens = sum(r.intended_tokens or 0 for r in aimed)
    return TokenFacts(
        num_estimated=sum(r.tokens_estimated for r in done),
        num_without_usage=sum(r.completion_tokens is None for r in done),
        num_contradicted=sum(r.num_token_events > (r.completion_tokens or 0) for r in done
                             if r.completion_tokens is not None),
        tokens_per_event=tokens / events if events else None,
        tokens_per_read=tokens / reads if reads else None,
        itl_reliable=alone >= RELIABLE_SHARE * tokens if streamed else None,
        prompt_ratio=sum(r.prompt_tokens or 0 for r in aimed) / aimed_tokens if aimed_tokens else None,
    )  # fmt: skip


def counted(records: Iterable[RequestRecord], of: Callable[[RequestRecord], str | None]) -> dict[str, int]:
    """How often each word occurs, the most frequent first; records without one are left out."""
    words = Counter(word for record in records if (word := of(record)) is not None)
    return dict(sorted(words.items(), key=lambda item: (-item[1], item[0])))


def _tokens(records: Iterable[RequestRecord]) -> int:
    return sum(record.completion_tokens or 0 for record in records)
