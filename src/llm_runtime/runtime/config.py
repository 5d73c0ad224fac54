"""Settings of the request's life: time limits, drain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Seconds; None: no such limit.

    request_timeout_s: a plain reply in total, a stream's time to its first token.
    queue_timeout_s: waiting in our queue. stream_idle_timeout_s: a gap within a stream.
    stream_max_s: a stream in total. write_stall_timeout_s: a client that does not read.
    keep_alive_interval_s: silence after which a stream gets a comment; body_timeout_s: a client
    that does not finish sending its body.
    drain_timeout_s: between the first signal and cancelling what still runs.
    """

    request_timeout_s: Annotated[float, Gt(0)] | None = 120.0
    queue_timeout_s: Annotated[float, Gt(0)] | None = None
    stream_idle_timeout_s: Annotated[float, Gt(0)] | None = 60.0
    stream_max_s: Annotated[float, Gt(0)] | None = None
    write_stall_timeout_s: Annotated[float, Gt(0)] = 30.0
    keep_alive_interval_s: Annotated[float, Gt(0)] | None = 10.0
    body_timeout_s: Annotated[float, Gt(0)] = 30.0
    drain_timeout_s: Annotated[float, Ge(0)] = 30.0
