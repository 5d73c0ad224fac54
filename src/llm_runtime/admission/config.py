"""Settings of the two gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Limits before anything is queued; None switches a limit off.

    max_queue_size: requests that may wait, per pool; more are refused with 503.
    request_rate_limit_per_s, request_rate_limit_burst: token bucket over all requests (429).
        The burst defaults to one second's worth, at least 1.
    """

    max_queue_size: Annotated[int, Ge(0)] | None = None
    request_rate_limit_per_s: Annotated[float, Gt(0)] | None = None
    request_rate_limit_burst: Annotated[int, Ge(1)] | None = None
