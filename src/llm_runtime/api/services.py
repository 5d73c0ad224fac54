"""What the routes need, handed over by the composition root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_runtime.admission.auth import ApiKeys
from llm_runtime.admission.estimate import TokenEstimator
from llm_runtime.admission.tenants import Tenants
from llm_runtime.core.events import Events
from llm_runtime.runtime.queue_report import QueueReport
from llm_runtime.runtime.runtime import Runtime
from llm_runtime.telemetry.families import Sources
from llm_runtime.telemetry.prometheus import PrometheusExporter
from llm_runtime.web.config import ServerConfig


@dataclass(frozen=True, slots=True)
class Services:
    """settings: what shapes the figures of whoever measures this server; no secret, address or path."""

    runtime: Runtime
    keys: ApiKeys
    admin_keys: ApiKeys
    tenants: Tenants
    estimator: TokenEstimator
    events: Events
    server: ServerConfig
    default_max_tokens: int
    metrics: Sources
    queue_report: QueueReport
    exporter: PrometheusExporter
    version: str
    settings: Mapping[str, Any]
