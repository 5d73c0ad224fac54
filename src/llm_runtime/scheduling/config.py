"""Settings of the scheduler and of batch formation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

Preset = Literal["fifo", "priority"]


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """policy: a preset of `scheduling.presets`.

    priority_aging_boost_interval_s: with `priority`, waiting this long raises a request by one
        priority level; None: strict priority.
    enable_batching, max_batch_size, batch_timeout_ms: micro-batching for engines that do not batch
        themselves; without it they get one request at a time. Ignored by native-batching engines.
    max_skip_s: how long a head that fits on no free replica lets later requests pass it.
    """

    policy: Preset = "fifo"
    priority_aging_boost_interval_s: Annotated[float, Gt(0)] | None = None
    enable_batching: bool = True
    max_batch_size: Annotated[int, Ge(1)] = 8
    batch_timeout_ms: Annotated[float, Ge(0)] = 10.0
    max_skip_s: Annotated[float, Ge(0)] = 1.0
