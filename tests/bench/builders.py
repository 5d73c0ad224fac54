"""Records with instants that make every latency a round number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llm_runtime.bench.records import RequestRecord, Status

WHOLE = RequestRecord(
    number=0,
    session=0,
    turn=0,
    traffic="default",
    scheduled_at=1.0,
    released_at=1.125,
    started_at=1.25,
    sent_at=1.375,
    first_byte_at=1.5,
    first_token_at=2.0,
    last_token_at=3.0,
    finished_at=3.5,
    http_status=200,
    finish_reason="length",
    prompt_tokens=10,
    completion_tokens=5,
    cached_tokens=0,
    num_token_events=5,
    itls_s=(0.25, 0.25, 0.25, 0.25),
    intended_tokens=8,
)
"""Due at 1, held 0.125 s by the client's lateness and 0.125 s by its cap, five tokens from 2 to 3."""


def whole(**changes: Any) -> RequestRecord:
    return replace(WHOLE, **changes)


def failed(**changes: Any) -> RequestRecord:
    """Refused with 503, 0.25 s after it was due."""
    return replace(
        WHOLE,
        **{
            "status": Status.FAILED, "http_status": 503, "error": "http_503", "code": "queue_full",
            "first_token_at": None, "last_token_at": None, "finished_at": 1.25, "finish_reason": None,
            "prompt_tokens": None, "completion_tokens": None, "cached_tokens": None,
            "num_token_events": 0, "itls_s": (), **changes,
        },
    )  # fmt: skip


def answered(
    scheduled_at: float, ttft_s: float, gaps_s: tuple[float, ...] = (), **changes: Any
) -> RequestRecord:
    """One token per read; ends with its last token."""
    first = scheduled_at + ttft_s
    last = first + sum(gaps_s)
    members = {
        "scheduled_at": scheduled_at, "released_at": scheduled_at, "started_at": scheduled_at,
        "first_token_at": first, "last_token_at": last, "finished_at": last, "itls_s": gaps_s,
        "completion_tokens": len(gaps_s) + 1, "num_token_events": len(gaps_s) + 1,
    }  # fmt: skip
    return replace(WHOLE, **{**members, **changes})
