"""Events as log lines, and several listeners as one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.events import Events, NullEvents
from llm_runtime.core.outcome import Outcome, RequestRecord
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.telemetry.digits import rounded
from llm_runtime.telemetry.log_lines import LineLog
from llm_runtime.telemetry.request_lines import SettledLines, identity, settled_fields, word

_FAILED: Final = Outcome.FAILED
_ALARMING_STATES: Final = frozenset({"crashed", "failed"})


class LogEvents:
    """Implements `core.events.Events`: one line for each, the settled one with all that is known.

    Used on the loop's thread. Token counts are the engine's unless `usage_estimated` says otherwise;
    durations are in seconds, null where undefined. Lines about requests go straight to the stream:
    request ids and tenants are of a checked shape, models and replicas are the operator's, reasons
    are words, so no key can be in them and there is no looking for one.
    """

    __slots__ = ("_debug", "_info", "_lines", "_settled_lines", "_warning")

    def __init__(self, lines: LineLog) -> None:
        self._lines = lines
        self._settled_lines = SettledLines(lines) if lines.makes_json else None
        self._debug = lines.level <= logging.DEBUG
        self._info = lines.level <= logging.INFO
        self._warning = lines.level <= logging.WARNING

    @property
    def deaf_to(self) -> frozenset[str]:
        """Events that make no line at this level."""
        return frozenset() if self._debug else frozenset({"accepted", "dispatched", "batch"})

    def accepted(self, request: RuntimeRequest) -> None:
        if self._debug:
            self._lines.write("debug", "request.accepted", identity(request), vetted=True)

    def rejected(self, request: RuntimeRequest, error: LLMRuntimeError) -> None:
        if self._info:
            fields = identity(request)
            fields["reason"] = word(error.reason)
            fields["retry_after_s"] = rounded(error.retry_after_s)
            self._lines.write("info", "request.rejected", fields, vetted=True)

    def refused(self, endpoint: str, status: int, reason: str) -> None:
        if self._info:
            fields = {"endpoint": endpoint, "status": status, "reason": word(reason)}
            self._lines.write("info", "request.refused", fields)

    def dispatched(self, request: RuntimeRequest, replica: str, queue_wait_s: float) -> None:
        if self._debug:
            fields = identity(request)
            fields["replica"] = replica
            fields["queue_s"] = rounded(queue_wait_s)
            self._lines.write("debug", "request.dispatched", fields, vetted=True)

    def attempt(self, request: RuntimeRequest, replica: str, result: str, *, retried: bool) -> None:
        if self._info and retried:
            fields = identity(request)
            fields["replica"] = replica
            fields["result"] = result
            self._lines.write("info", "request.retried", fields, vetted=True)

    def batch(self, replica: str, num_requests: int) -> None:
        if self._debug:
            self._lines.write("debug", "engine.batch", {"replica": replica, "num_requests": num_requests})

    def settled(self, record: RequestRecord) -> None:
        failed = record.outcome is _FAILED
        if not (self._warning if failed else self._info):
            return
        line = None if self._settled_lines is None else self._settled_lines.of(record)
        if line is not None:
            self._lines.put(line)
            return
        level = "warning" if failed else "info"
        self._lines.write(level, "request.settled", settled_fields(record), vetted=True)

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
