"""Settings of logs, metrics and GPU telemetry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """log_format `auto`: console lines on a terminal, JSON lines elsewhere.

    gpu_poll_interval_s: seconds between two readings of the GPUs; 0 switches GPU telemetry off.
    """

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    gpu_poll_interval_s: Annotated[float, Ge(0)] = 5.0
