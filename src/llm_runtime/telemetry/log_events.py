"""Events as log lines, and several listeners as one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.events import Events, NullEvents
from llm_runtime.core.outcome import Outcome, RequestRecord
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.telemetry.labels import OTHER
from llm_runtime.telemetry.logging import LineLog

_ALARMING_STATES = frozenset({"crashed", "failed"})


class LogEvents:
    """Implements `core.events.Events`: one line for each, the settled one with all that is known.

    Used on the loop's thread. Token counts are the engine's unless `usage_estimated` says otherwise;
    durations are in seconds, null where undefined. Lines about requests go straight to the stream:
    request ids and tenants are of a checked shape, models and replicas are the operator's, reasons
    are words, so no key can be in them and there is no looking for one.
    """

    __slots__ = ("_debug", "_info", "_lines", "_warning")

    def __init__(self, lines: LineLog) -> None:
        self._lines = lines
        self._debug = lines.level <= logging.DEBUG
        self._info = lines.level <= logging.INFO
        self._warning = lines.level <= logging.WARNING

    @property
    def deaf_to(self) -> frozenset[str]:
        """Events that make no line at this level."""
        return frozenset() if self._debug else frozenset({"accepted", "dispatched", "batch"})

    def accepted(self, request: RuntimeRequest) -> None:
        if self._debug:
            self._lines.write("debug", "request.accepted", _identity(request), vetted=True)

    def rejected(self, request: RuntimeRequest, error: LLMRuntimeError) -> None:
        if self._info:
            fields = _identity(request)
            fields["reason"] = _word(error.reason)
            fields["retry_after_s"] = _rounded(error.retry_after_s)
            self._lines.write("info", "request.rejected", fields, vetted=True)

    def refused(self, endpoint: str, status: int, reason: str) -> None:
        if self._info:
            fields = {"endpoint": endpoint, "status": status, "reason": _word(reason)}
            self._lines.write("info", "request.refused", fields)

    def dispatched(self, request: RuntimeRequest, replica: str, queue_wait_s: float) -> None:
        if self._debug:
            fields = _identity(request)
            fields["replica"] = replica
            fields["queue_s"] = _rounded(queue_wait_s)
            self._lines.write("debug", "request.dispatched", fields, vetted=True)

    def attempt(self, request: RuntimeRequest, replica: str, result: str, *, retried: bool) -> None:
        if self._info and retried:
            fields = _identity(request)
            fields["replica"] = replica
            fields["result"] = result
            self._lines.write("info", "request.retried", fields, vetted=True)

    def batch(self, replica: str, num_requests: int) -> None:
        if self._debug:
            self._lines.write("debug", "engine.batch", {"replica": replica, "num_requests": num_requests})

    def settled(self, record: RequestRecord) -> None:
        failed = record.outcome is Outcome.FAILED
        if failed and self._warning:
            self._lines.write("warning", "request.settled", _ending(record), vetted=True)
        elif self._info:
            self._lines.write("info", "request.settled", _ending(record), vetted=True)

    def engine_state(self, replica: str, state: str, reason: str | None) -> None:
        fields = {"replica": replica, "state": state, "reason": reason}
        if state in _ALARMING_STATES:
            if self._warning:
                self._lines.write("warning", "engine.state", fields)
        elif self._info:
            self._lines.write("info", "engine.state", fields)

    def lease_suspect(self, replica: str, request_id: str) -> None:
        if self._warning:
            fields = {"replica": replica, "request_id": request_id}
            self._lines.write("warning", "engine.lease_suspect", fields)


def _identity(request: RuntimeRequest) -> dict[str, Any]:
    return {
        "request_id": request.id,
        "tenant": request.tenant,
        "model": request.model,
        "endpoint": request.endpoint.value,
        "priority": request.priority,
        "stream": request.stream,
    }


def _ending(record: RequestRecord) -> dict[str, Any]:
    request, usage, timeline = record.request, record.usage, record.timeline
    tpot_s = timeline.tpot_s(usage.completion_tokens) if request.num_slots == 1 else None
    return {
        **_identity(request),
        "outcome": record.outcome.value,
        "reason": _word(record.reason),
        "replica": record.replica,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "usage_estimated": usage.estimated,
        "queue_s": _rounded(timeline.queue_wait_s),
        "ttft_s": _rounded(timeline.ttft_s),
        "tpot_s": _rounded(tpot_s),
        "total_s": _rounded(timeline.e2e_s),
    }


def _word(reason: str) -> str:
    """Reasons are words; what an upstream put in their place is not repeated."""
    return reason if reason.isidentifier() and len(reason) <= 64 else OTHER


def _rounded(duration_s: float | None) -> float | None:
    """To the microsecond: more digits are noise."""
    return None if duration_s is None else round(duration_s, 6)


class FanOutEvents:
    """Tells every listener that listens, in the order given. Implements `core.events.Events`."""

    __slots__ = (
        "_accepted", "_attempt", "_batch", "_dispatched", "_engine_state", "_lease_suspect", "_refused",
        "_rejected", "_settled",
    )  # fmt: skip

    def __init__(self, *listeners: Events) -> None:
        self._accepted = tuple(each.accepted for each in _who_hears("accepted", listeners))
        self._rejected = tuple(each.rejected for each in _who_hears("rejected", listeners))
        self._refused = tuple(each.refused for each in _who_hears("refused", listeners))
        self._dispatched = tuple(each.dispatched for each in _who_hears("dispatched", listeners))
        self._attempt = tuple(each.attempt for each in _who_hears("attempt", listeners))
        self._batch = tuple(each.batch for each in _who_hears("batch", listeners))
        self._settled = tuple(each.settled for each in _who_hears("settled", listeners))
        self._engine_state = tuple(each.engine_state for each in _who_hears("engine_state", listeners))
        self._lease_suspect = tuple(each.lease_suspect for each in _who_hears("lease_suspect", listeners))

    def accepted(self, request: RuntimeRequest) -> None:
        for tell in self._accepted:
            tell(request)

    def rejected(self, request: RuntimeRequest, error: LLMRuntimeError) -> None:
        for tell in self._rejected:
            tell(request, error)

    def refused(self, endpoint: str, status: int, reason: str) -> None:
        for tell in self._refused:
            tell(endpoint, status, reason)

    def dispatched(self, request: RuntimeRequest, replica: str, queue_wait_s: float) -> None:
        for tell in self._dispatched:
            tell(request, replica, queue_wait_s)

    def attempt(self, request: RuntimeRequest, replica: str, result: str, *, retried: bool) -> None:
        for tell in self._attempt:
            tell(request, replica, result, retried=retried)

    def batch(self, replica: str, num_requests: int) -> None:
        for tell in self._batch:
            tell(replica, num_requests)

    def settled(self, record: RequestRecord) -> None:
        for tell in self._settled:
            tell(record)

    def engine_state(self, replica: str, state: str, reason: str | None) -> None:
        for tell in self._engine_state:
            tell(replica, state, reason)

    def lease_suspect(self, replica: str, request_id: str) -> None:
        for tell in self._lease_suspect:
            tell(replica, request_id)


def _who_hears(event: str, listeners: Iterable[Events]) -> list[Events]:
    """Those for which it means anything: an event that reaches nobody costs nothing."""
    return [
        each
        for each in listeners
        if getattr(type(each), event, None) is not getattr(NullEvents, event)
        and not (isinstance(each, LogEvents) and event in each.deaf_to)
    ]
