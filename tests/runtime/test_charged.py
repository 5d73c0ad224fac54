"""What an ended request counts against the limits of its tenant."""

from __future__ import annotations

import pytest

from llm_runtime.core.outcome import Outcome, RequestRecord, Usage
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.core.timeline import Timeline
from llm_runtime.runtime.endings import charged

NOTHING = Usage(estimated=True)
PROMPT = Usage(prompt_tokens=30)
SOME = Usage(prompt_tokens=30, completion_tokens=4)
ESTIMATE = Usage(prompt_tokens=25, estimated=True)


def record(outcome: Outcome, usage: Usage, *, dispatched: bool) -> RequestRecord:
    timeline = Timeline(0.0)
    timeline.dispatched_at = 1.0 if dispatched else None
    request = RuntimeRequest(
        id="r", model="m", kind=EndpointKind.CHAT, body={}, arrived_at=0.0, created=0, num_prompt_tokens=25
    )
    return RequestRecord(request=request, outcome=outcome, reason="x", usage=usage, timeline=timeline)


@pytest.mark.parametrize(
    ("outcome", "usage", "dispatched", "expected"),
    [
        (Outcome.COMPLETED, SOME, True, SOME),
        (Outcome.COMPLETED, PROMPT, True, PROMPT),  # an embedding, or an answer of nothing
        (Outcome.CANCELLED, SOME, True, SOME),
        (Outcome.CANCELLED, PROMPT, True, PROMPT),
        (Outcome.CANCELLED, NOTHING, True, ESTIMATE),
        (Outcome.CANCELLED, NOTHING, False, None),
        (Outcome.TIMED_OUT, NOTHING, True, ESTIMATE),
        (Outcome.EVICTED, NOTHING, False, None),
        (Outcome.FAILED, PROMPT, True, None),
        (Outcome.FAILED, NOTHING, True, None),
        (Outcome.FAILED, SOME, True, SOME),
    ],
)
def test_charged(outcome: Outcome, usage: Usage, dispatched: bool, expected: Usage | None) -> None:
    assert charged(record(outcome, usage, dispatched=dispatched)) == expected
