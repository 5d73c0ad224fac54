"""How a pool's work was shared: pure functions over jobs.

Service is counted as token-fair schedulers count it: a prompt token 1, a generated token 2. A prompt's
service comes evenly between dispatch and first token, an answer's between first and last token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llm_runtime.bench.sim.job import Job

INPUT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0

Spans = list[tuple[float, float]]
"""Stretches of time, ascending, that neither touch nor overlap."""


def jain(values: Sequence[float]) -> float | None:
    """Jain's index: 1 when all are equal, 1/n when one has everything; None without values or with
    nothing to share."""
    squares = sum(value * value for value in values)
    if not squares:
        return None
    return sum(values) ** 2 / (len(values) * squares)


def starved_share(ttfts_s: Iterable[float | None], budget_s: float) -> float | None:
    """Share of requests without a first token in time; None of a TTFT: it never came."""
    late = [ttft is None or ttft > budget_s for ttft in ttfts_s]
    return sum(late) / len(late) if late else None


def service(jobs: Iterable[Job], within: Spans) -> float:
    """Weighted tokens that these jobs received within the spans."""
    total = 0.0
    for job in jobs:
        first_at, last_at = job.first_token_at, job.last_token_at
        if job.dispatched_at is None or first_at is None:
            continue
        prompt = INPUT_WEIGHT * job.ask.prompt_tokens
        total += prompt * _share(job.dispatched_at, first_at, within)
        if last_at is not None:
            answer = OUTPUT_WEIGHT * job.num_generated * job.ask.num_slots
            total += answer * _share(first_at, last_at, within)
    return total


def backlogged(jobs: Iterable[Job], *, at_least: int = 1, in_engine: bool = False) -> Spans:
    """When so many of these jobs were waiting in the queue; in_engine: or had no token yet, which is all that
    can be seen of an engine's own queue."""
    changes: list[tuple[float, int]] = []
    for job in jobs:
        left_at = job.first_token_at if in_engine else job.dispatched_at
        left_at = job.finished_at if left_at is None else left_at
        if job.queued_at is not None and left_at is not None and left_at > job.queued_at:
            changes += [(job.queued_at, 1), (left_at, -1)]
    spans: Spans = []
    level, since = 0, 0.0
    for at, change in sorted(changes, key=lambda item: (item[0], -item[1])):
        before, level = level, level + change
        if before < at_least <= level:
            since = at
        elif level < at_least <= before and at > since:
            spans.append((since, at))
    return _merged(spans)


def common(spans: Iterable[Spans]) -> Spans:
    """Where all of them overlap."""
    found: Spans | None = None
    for each in spans:
        found = each if found is None else _overlap(found, each)
    return found or []


def length_s(spans: Spans) -> float:
    return sum(to - since for since, to in spans)


def by_tenant(jobs: Iterable[Job]) -> Mapping[str, list[Job]]:
    tenants: dict[str, list[Job]] = {}
    for job in jobs:
        tenants.setdefault(job.ask.tenant, []).append(job)
    return tenants


def _share(since: float, to: float, within: Spans) -> float:
    """Of something spread evenly over [since, to]; of an instant, whether it lies within."""
    if to <= since:
        return float(any(start <= since < end for start, end in within))
    covered = sum(max(0.0, min(to, end) - max(since, start)) for start, end in within if end > since)
    return covered / (to - since)


def _merged(spans: Spans) -> Spans:
    merged: Spans = []
    for since, to in spans:
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], to)
        else:
            merged.append((since, to))
    return merged


def _overlap(one: Spans, other: Spans) -> Spans:
    found: Spans = []
    i = j = 0
    while i < len(one) and j < len(other):
        since, to = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if since < to:
            found.append((since, to))
        if one[i][1] <= other[j][1]:
            i += 1
        else:
            j += 1
    return found
