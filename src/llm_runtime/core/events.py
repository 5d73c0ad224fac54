"""`Events`: what happens to requests and engines, told to whoever measures. Never per token."""

from __future__ import annotations

from typing import Protocol

from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.outcome import RequestRecord
from llm_runtime.core.request import RuntimeRequest


class Events(Protocol):
    """Implemented by telemetry; every method is synchronous, cheap and never raises."""

    def accepted(self, request: RuntimeRequest) -> None:
        """Validated and past the identity gate."""
        ...

    def rejected(self, request: RuntimeRequest, error: LLMRuntimeError) -> None:
        """Refused by a gate. No `settled` follows; the request was never queued."""
        ...

    def refused(self, endpoint: str, status: int, reason: str) -> None:
        """Refused before it became a request: bad body, unknown path, no key."""
        ...

    def dispatched(self, request: RuntimeRequest, replica: str, queue_wait_s: float) -> None: ...

    def attempt(self, request: RuntimeRequest, replica: str, result: str, *, retried: bool) -> None:
        """What a replica made of a request it was given; once for each dispatch that was not taken back.

        result: a word of `routing.verdict.Verdict`. retried: the request was queued once more for it.
        """
        ...

    def batch(self, replica: str, num_requests: int) -> None:
        """A static batch of that size was handed to an engine."""
        ...

    def settled(self, record: RequestRecord) -> None:
        """The one end of a request that had been accepted by the capacity gate."""
        ...

    def engine_state(self, replica: str, state: str, reason: str | None) -> None: ...

    def lease_suspect(self, replica: str, request_id: str) -> None: ...


class NullEvents:
    """Measures nothing: for tests and for the simulator."""

    def accepted(self, request: RuntimeRequest) -> None: ...

    def rejected(self, request: RuntimeRequest, error: LLMRuntimeError) -> None: ...

    def refused(self, endpoint: str, status: int, reason: str) -> None: ...

    def dispatched(self, request: RuntimeRequest, replica: str, queue_wait_s: float) -> None: ...

    def attempt(self, request: RuntimeRequest, replica: str, result: str, *, retried: bool) -> None: ...

    def batch(self, replica: str, num_requests: int) -> None: ...

    def settled(self, record: RequestRecord) -> None: ...

    def engine_state(self, replica: str, state: str, reason: str | None) -> None: ...

    def lease_suspect(self, replica: str, request_id: str) -> None: ...
