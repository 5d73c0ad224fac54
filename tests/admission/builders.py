"""Requests and loads for admission tests."""

from __future__ import annotations

from typing import Any

from llm_runtime.admission.base import Load
from llm_runtime.core.request import EndpointKind, RuntimeRequest


def request(model: str = "m", **fields: Any) -> RuntimeRequest:
    return RuntimeRequest(
        id="r", model=model, kind=EndpointKind.CHAT, body={}, arrived_at=0.0, created=0, **fields
    )


def load(num_waiting: int = 0, *, would_wait: bool | None = None) -> Load:
    return Load(
        num_waiting=num_waiting,
        num_waiting_tokens=0,
        num_running=4,
        num_slots=4,
        num_free_slots=0,
        would_wait=num_waiting > 0 if would_wait is None else would_wait,
    )
