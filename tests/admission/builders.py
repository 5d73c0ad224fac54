"""Requests and loads for admission tests."""

from __future__ import annotations

import math
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
        would_wait=num_waiting > 0 if would_wait is None else would_wait,
        **fields,
    )


def forecast(wait_s: float, *, interval_s: float = 1.0, **fields: float) -> Forecast:
    """A pool that drains one unit of work per second."""
    values = {"own_s": interval_s, "sheddable_s": 0.0, "prompt_s": 0.0, "answer_s": 0.0, "rate": 1.0}
    return Forecast(wait_s=wait_s, interval_s=interval_s, **{**values, **fields})


def expected_share(told_s: float) -> float:
    """Of those who were told so long a wait, how many are expected while nobody's return was seen yet, as
    docs/overload.md says: 1 / (1 + (t / 20 s)^2), t to the nearest quarter of an octave, at least 0.5 s."""
    nearest = 2 ** (round(4 * math.log2(max(told_s, 0.5))) / 4)
    return 1 / (1 + (nearest / 20) ** 2)


def told_in_turn(first_s: float, num: int, *, own_s: float) -> list[float]:
    """What the first so many refused are told who bring equal work, as docs/overload.md says: each the time
    of whom came before, and the expected share of own_s, in which a tenth of the rate is not promised."""
    told = [first_s]
    while len(told) < num:
        told.append(told[-1] + expected_share(told[-1]) * own_s / 0.9)
    return told
