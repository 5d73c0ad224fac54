"""What lines about requests hold, and the line of one that has ended as text, written in one go.

Every request has that line, and it is long. What many have in common is kept: the fields between the
request's id and its numbers depend on nothing but who asked for what and how that ended.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from llm_runtime.core.outcome import Outcome, RequestRecord
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.telemetry.digits import rounded, seconds
from llm_runtime.telemetry.labels import OTHER
from llm_runtime.telemetry.log_lines import LineLog, one_line

MAX_ENDS: Final = 1000
"""Kinds of ends that are kept: without keys clients name their tenants themselves."""

MAX_WORD: Final = 64

_dumps: Final = orjson.dumps
_FAILED: Final = Outcome.FAILED
_HUGE: Final = 1 << 60

# Tenant, model, endpoint, priority, stream; outcome, reason, replica.
End = tuple[str, str, EndpointKind, int, bool, Outcome, str, str | None]


class SettledLines:
    """Used on the loop's thread, for a log whose lines are JSON."""

    __slots__ = ("_ends", "_lines")

    def __init__(self, lines: LineLog) -> None:
        self._lines = lines
        self._ends: dict[End, str] = {}

    @property
    def num_kept(self) -> int:
        return len(self._ends)

    def of(self, record: RequestRecord) -> bytes | None:
        """What `LineLog.write` would make of `settled_fields`; None: only that can do it."""
        request, usage, timeline = record.request, record.usage, record.timeline
        request_id, outcome = request.id, record.outcome
        prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        if not (
            _is_plain(request_id) and 0 <= prompt < _HUGE and 0 <= completion < _HUGE and 0 <= cached < _HUGE
        ):
            return None
        end = (
            request.tenant, request.model, request.via or request.kind, request.priority, request.stream,
            outcome, record.reason, record.replica,
        )  # fmt: skip
        shared = self._ends.get(end)
        if shared is None:
            shared = self._shared(end, record)
            if shared is None:
                return None
        level = "warning" if outcome is _FAILED else "info"
        estimated = "true" if usage.estimated else "false"
        tpot_s = seconds(timeline.tpot_s(completion)) if request.num_slots == 1 else "null"
        line = (
            f'{{"timestamp":"{self._lines.stamp()}","level":"{level}","event":"request.settled",'
            f'"request_id":"{request_id}",{shared},"prompt_tokens":{prompt},"completion_tokens":{completion},'
            f'"cached_tokens":{cached},"usage_estimated":{estimated},"queue_s":{seconds(timeline.queue_wait_s)},'
            f'"ttft_s":{seconds(timeline.ttft_s)},"tpot_s":{tpot_s},"total_s":{seconds(timeline.e2e_s)}}}'
        )
        return line.encode()

    def _shared(self, end: End, record: RequestRecord) -> str | None:
        """What all lines of such an end have in common."""
        fields = {**identity(record.request), **_how(record)}
        del fields["request_id"]
        try:
            text = one_line(_dumps(fields))[1:-1].decode()
        except TypeError:
            return None
        if len(self._ends) >= MAX_ENDS:
            self._ends.clear()
        if len(record.reason) <= MAX_WORD:  # an upstream may have put a book in its place
            self._ends[end] = text
        return text


def _is_plain(text: str) -> bool:
    """Whether JSON has it as it is: whatever it writes in another way is longer then."""
    try:
        return len(_dumps(text)) == len(text) + 2
    except TypeError:
        return False


# ---- fields


def identity(request: RuntimeRequest) -> dict[str, Any]:
    return {
        "request_id": request.id,
        "tenant": request.tenant,
        "model": request.model,
        "endpoint": request.endpoint.value,
        "priority": request.priority,
        "stream": request.stream,
    }


def settled_fields(record: RequestRecord) -> dict[str, Any]:
    request, usage, timeline = record.request, record.usage, record.timeline
    tpot_s = timeline.tpot_s(usage.completion_tokens) if request.num_slots == 1 else None
    return {
        **identity(request),
        **_how(record),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "usage_estimated": usage.estimated,
        "queue_s": rounded(timeline.queue_wait_s),
        "ttft_s": rounded(timeline.ttft_s),
        "tpot_s": rounded(tpot_s),
        "total_s": rounded(timeline.e2e_s),
    }


def _how(record: RequestRecord) -> dict[str, Any]:
    """It ended."""
    return {"outcome": record.outcome.value, "reason": word(record.reason), "replica": record.replica}


def word(reason: str) -> str:
    """Reasons are words; what an upstream put in their place is not repeated."""
    return reason if reason.isidentifier() and len(reason) <= MAX_WORD else OTHER
