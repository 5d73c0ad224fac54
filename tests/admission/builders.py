"""Requests and loads for admission tests."""

from __future__ import annotations

from typing import Any

from llm_runtime.admission.base import Load
from llm_runtime.admission.forecast import Forecast
from llm_runtime.core.request import EndpointKind, RuntimeRequest


def request(model: str = "m", **fields: Any) -> RuntimeRequest:
    given: dict[str, Any] = {"id": "r", "arrived_at": 0.0, **fields}
    return RuntimeRequest(model=model, kind=EndpointKind.CHAT, body={}, created=0, **given)


def load(num_waiting: int = 0, *, would_wait: bool | None = None, **fields: Any) -> Load:
    return Load(
        num_waiting=num_waiting,
        num_waiting_tokens=0,
        num_running=4,
        num_slots=4,
        num_free_slots=0,
        would_wait=num_waiting > 0 if would_wait is None else would_wait,
        **fields,
    )


def forecast(wait_s: float, *, interval_s: float = 1.0, **fields: float) -> Forecast:
    """A pool that drains one unit of work per second."""
    values = {"own_s": interval_s, "sheddable_s": 0.0, "prompt_s": 0.0, "answer_s": 0.0, "rate": 1.0}
    return Forecast(wait_s=wait_s, interval_s=interval_s, **{**values, **fields})
