"""Composition root: builds every object and runs the server. `uvicorn llm_runtime.main:app` works too.

Only this module and `cli.py` read the environment.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI

from llm_runtime import __version__
from llm_runtime.admission.auth import ApiKeys
from llm_runtime.admission.base import AdmissionPolicy
from llm_runtime.admission.capacity_gate import CapacityGate
from llm_runtime.admission.controller import AdmissionController
from llm_runtime.admission.estimate import TokenEstimator
from llm_runtime.admission.limiter import build_limiter
from llm_runtime.admission.limiter import secrets_of as tenant_secrets_of
from llm_runtime.admission.policies import RateLimit
from llm_runtime.admission.tenant_gate import TenantGate
from llm_runtime.admission.tenant_limits import LocalLimits
from llm_runtime.admission.tenants import Tenants
from llm_runtime.api.app import RuntimeApp, create_app
from llm_runtime.api.hot_paths import hot_paths
from llm_runtime.api.services import Services
from llm_runtime.core.build import COMPILED
from llm_runtime.core.clock import Clock, SystemClock
from llm_runtime.core.events import Events
from llm_runtime.engine_setup import engine_backends
from llm_runtime.engines.base import Backend
from llm_runtime.engines.openai.target import secrets_of
from llm_runtime.routing.policies.least_load import LeastLoad
from llm_runtime.routing.router import Router
from llm_runtime.runtime.dispatcher import Dispatcher
from llm_runtime.runtime.drain import SignalDrain
from llm_runtime.runtime.pools import Pool
from llm_runtime.runtime.queue_report import QueueReport
from llm_runtime.runtime.replica import Replica
from llm_runtime.runtime.runtime import Runtime
from llm_runtime.runtime.service_book import ServiceBook
from llm_runtime.runtime.state import StateReader
from llm_runtime.scheduling.presets import build_scheduler
from llm_runtime.serving import announce, check_exposed, check_workers, listen, server_config, settle_heap
from llm_runtime.settings import Settings, load_settings
from llm_runtime.telemetry.families import Sources
from llm_runtime.telemetry.gpu import NvidiaSmiSampler
from llm_runtime.telemetry.log_events import FanOutEvents, LogEvents
from llm_runtime.telemetry.logging import configure_logging
from llm_runtime.telemetry.loop_lag import LoopLag
from llm_runtime.telemetry.metrics import MetricsCollector
from llm_runtime.telemetry.prometheus import PrometheusExporter
from llm_runtime.web.protocol import install

log = structlog.get_logger(__name__)


def __getattr__(name: str) -> Any:
    """`app` is built when a server asks for it, not when something else imports this module."""
    if name == "app":
        return build_app(load_settings({}, os.environ))
    raise AttributeError(name)


@dataclass(frozen=True, slots=True)
class Built:
    """An application with the runtime inside it, for servers and for tests."""

    app: RuntimeApp
    runtime: Runtime
    settings: Settings
    events: Events


def build_app(settings: Settings) -> RuntimeApp:
    """The ASGI application alone, as `uvicorn llm_runtime.main:app` gets it. Raises ConfigError."""
    return build(settings).app


def build(
    settings: Settings,
    *,
    backend: Backend | None = None,
    backends: Sequence[Backend] = (),
    listeners: Sequence[Events] = (),
) -> Built:
    """Every object, nothing started. Raises ConfigError where the settings cannot work.

    backend: serve with this engine instead of the configured one; backends: with these, all alike.
    listeners: told of events as well.
    """
    server, admission = settings.server, settings.admission
    secrets = (
        *server.api_keys,
        *server.admin_api_keys,
        *tenant_secrets_of(admission),
        *secrets_of(settings.engines.openai),
    )
    lines = configure_logging(settings.telemetry, secrets=secrets)
    for warning in settings.warnings:
        log.warning("settings.warning", message=warning)
    clock = SystemClock()
    if not backends:
        backends = [backend] if backend is not None else engine_backends(settings, clock, os.environ)
    keys = ApiKeys(server.api_keys, {tenant.name: tenant.keys for tenant in admission.tenants})
    tenants = Tenants(admission.tenants)
    limiter = build_limiter(admission.redis)
    estimator = TokenEstimator()
    metrics = MetricsCollector(
        models=_names(backends), tenants=keys.tenants if keys.enabled else tenants.names
    )
    book = ServiceBook()
    events = FanOutEvents(metrics, LogEvents(lines), book, *listeners)
    dispatcher = _dispatcher(settings, backends, events, clock, tenants)
    gate = TenantGate(tenants, limiter, clock) if tenants.limited else None
    runtime = Runtime(
        [Pool(backends[0].info.model, backends[0].info.endpoints, dispatcher)],
        AdmissionController(_identity(settings), [_capacity_gate(settings)], gate),
        events=events,
        clock=clock,
        limits=settings.limits,
    )
    shared_limits = None
    if gate is not None and not isinstance(limiter, LocalLimits):
        runtime.add_background("tenant limits", limiter.run)
        shared_limits = limiter
    gpu = NvidiaSmiSampler(settings.telemetry.gpu_poll_interval_s)
    lag = LoopLag()
    runtime.add_background("loop lag", lag.run)
    if gpu.enabled:
        runtime.add_background("gpu telemetry", gpu.run)
    runtime.index.on_change = metrics.add_models
    runtime.on_settled = estimator.learn
    sources = Sources(
        metrics=metrics, runtime=StateReader(runtime), loop_lag=lag, gpu=gpu, shared_limits=shared_limits
    )
    services = Services(
        runtime=runtime,
        keys=keys,
        admin_keys=ApiKeys(server.admin_api_keys, setting="server.admin_api_keys"),
        tenants=tenants,
        estimator=estimator,
        events=events,
        server=settings.server,
        default_max_tokens=settings.model.default_max_tokens,
        metrics=sources,
        queue_report=QueueReport(
            runtime, book, policy=settings.scheduling.policy, weight_of=tenants.weight_of
        ),
        exporter=PrometheusExporter(sources),
        version=__version__,
        settings=_told(settings),
    )
    app = create_app(services, hot_paths(services), _lifespan(settings, runtime, events))
    return Built(app, runtime, settings, events)


def _told(settings: Settings) -> dict[str, Any]:
    """What shapes the server's figures, for result files of benchmarks."""
    admission, limits = settings.admission, settings.limits
    return {
        "backend": settings.engines.backend,
        "compiled": COMPILED,
        "scheduling": asdict(settings.scheduling),
        "max_queue_size": admission.max_queue_size,
        "max_predicted_wait_s": admission.max_predicted_wait_s,
        "retry_share": admission.retry_share,
        "queue_timeout_s": limits.queue_timeout_s,
        "request_timeout_s": limits.request_timeout_s,
    }


def _names(backends: Sequence[Backend]) -> tuple[str, ...]:
    """Of all models, as far as they are known."""
    return tuple(dict.fromkeys(name for backend in backends for name in backend.info.names))


def _capacity_gate(settings: Settings) -> CapacityGate:
    admission = settings.admission
    return CapacityGate(
        admission.max_queue_size,
        max_predicted_wait_s=admission.max_predicted_wait_s,
        retry_share=admission.retry_share,
    )


def _dispatcher(
    settings: Settings, backends: Sequence[Backend], events: Events, clock: Clock, tenants: Tenants
) -> Dispatcher:
    # Engines of our own are watched and restarted; a breaker would only keep them from work.
    rules = settings.routing.breaker if settings.engines.backend == "openai" else None
    return Dispatcher(
        [Replica(f"{one.info.name}-{number}", one, rules) for number, one in enumerate(backends)],
        build_scheduler(settings.scheduling, weight_of=tenants.weight_of),
        Router(LeastLoad(), random.Random()),  # noqa: S311 - it only breaks ties
        events=events,
        clock=clock,
        cancel_timeout_s=settings.engines.supervision.cancel_timeout_s,
        routing=settings.routing,
        adaptive_limit=settings.scheduling.adaptive_limit,
    )


def _identity(settings: Settings) -> list[AdmissionPolicy]:
    rate = settings.admission.request_rate_limit_per_s
    if rate is None:
        return []
    return [RateLimit(rate, settings.admission.request_rate_limit_burst)]


def _lifespan(
    settings: Settings, runtime: Runtime, events: Events
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        signals = SignalDrain(runtime)
        signals.take_over()
        check_workers(signals.num_workers)
        install(signals.server_config, settings.limits.body_timeout_s, events.refused)
        host = signals.bound_host
        if host is not None:
            check_exposed(host, settings)
        try:
            await runtime.start()
            yield
        finally:
            try:
                await runtime.aclose()
            finally:
                await signals.restore()

    return lifespan


def serve(settings: Settings) -> int:
    """Runs the server until it is stopped; the process's exit status. Raises ConfigError."""
    return run(build(settings))


def run(built: Built) -> int:
    """Serves what was built, as `serve` does."""
    host = built.settings.server.host
    listener = listen(host, built.settings.server.port)
    port = listener.getsockname()[1]

    def ready() -> None:
        announce(host, port, built.runtime.models, built.settings)
        settle_heap()

    built.runtime.on_ready = ready
    server = uvicorn.Server(server_config(built.app, built.settings, built.events.refused))
    server.run(sockets=[listener])
    listener.close()
    return 0 if server.started else 1
