"""The Ray Serve application: one ingress, which is the runtime with its one queue, and engine replicas.

    serve run serve.app:deployment
    serve run serve.app:deployment max_queue_size=64 engines.native_backend_concurrency=4

The ingress is the application of `llm_runtime.main`, with seats for replicas in the place of an engine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import ray
import structlog
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from llm_runtime.core.clock import SystemClock
from llm_runtime.core.errors import ConfigError
from llm_runtime.deploy.ray_door import RayDoor
from llm_runtime.deploy.ray_settings import Plan, make_plan
from llm_runtime.engine_setup import engine_backend
from llm_runtime.engines.base import Batching
from llm_runtime.engines.ray.base import Membership
from llm_runtime.engines.ray.board import BOARD
from llm_runtime.engines.ray.fleet import Fleet
from llm_runtime.engines.ray.link import HandleLink
from llm_runtime.engines.ray.service import EngineService
from llm_runtime.engines.ray.steering import SteeredRouter
from llm_runtime.main import build
from llm_runtime.serving import check_exposed
from llm_runtime.telemetry.gpu_readers import NvmlReader
from llm_runtime.telemetry.gpu_reading import GpuUnavailable
from llm_runtime.telemetry.logging import configure_logging

log = structlog.get_logger(__name__)

ENGINE = "Engine"
INGRESS = "Ingress"
BEYOND_ANY_QUEUE = 100_000
"""Of the ingress: so far above every limit of ours that all refusals are ours."""

CLOSING_S = 10.0
"""Of the ingress, once its last stream has ended."""

QUIET = LoggingConfig(enable_access_log=False)
SAME_LOOP = {
    "env_vars": {
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    }
}
"""Nothing here blocks its loop, so Ray's router and its calls need no thread of their own: two hops less
for every token."""


def deployment(args: Mapping[str, Any]) -> serve.Application:
    """What `serve run serve.app:deployment [SETTING=VALUE ...]` deploys. Raises ConfigError."""
    plan = make_plan({key: str(value) for key, value in args.items()}, os.environ, has_gpu=_has_gpu())
    return application(plan)


def application(plan: Plan) -> serve.Application:
    """The two deployments of a plan, bound to each other."""
    config = plan.settings.ray
    scaling: dict[str, Any] = {"num_replicas": config.min_replicas}
    if plan.max_replicas > config.min_replicas:
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=config.min_replicas,
                max_replicas=plan.max_replicas,
                target_ongoing_requests=plan.target_ongoing_requests,
                upscale_delay_s=config.upscale_delay_s,
                downscale_delay_s=config.downscale_delay_s,
                metrics_interval_s=min(1.0, max(config.upscale_delay_s, 0.1)),
                look_back_period_s=min(5.0, max(config.upscale_delay_s, 0.5)),
            )
        }
    engine = serve.deployment(
        Engine,
        name=ENGINE,
        max_ongoing_requests=plan.num_slots,
        ray_actor_options={
            "num_cpus": config.num_cpus,
            "num_gpus": plan.num_gpus,
            "runtime_env": SAME_LOOP,
        },
        graceful_shutdown_timeout_s=config.drain_timeout_s,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=config.health_check_period_s,
        logging_config=QUIET,
        request_router_config=RequestRouterConfig(request_router_class=SteeredRouter),
        **scaling,
    )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name=INGRESS,
        num_replicas=1,
        max_ongoing_requests=BEYOND_ANY_QUEUE,
        ray_actor_options={"num_cpus": config.num_ingress_cpus, "runtime_env": SAME_LOOP},
        graceful_shutdown_timeout_s=config.drain_timeout_s + CLOSING_S,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=config.health_check_period_s,
        logging_config=QUIET,
    )
    told = plan.without_scaling
    return ingress.bind(engine.bind(told), told)


class Engine:
    """A replica: one engine, as many requests at once as it has slots."""

    async def __init__(self, plan: Plan) -> None:  # type: ignore[misc]  # Ray awaits it
        """Returns when the engine is ready. Raises ConfigError, BackendUnavailable."""
        configure_logging(plan.settings.telemetry)
        if plan.device == "gpu" and not _local_gpu():
            raise ConfigError(
                "ray.device = gpu, and the machine of this engine has no GPU: set ray.num_gpus to at least "
                "a part of one, so that Ray chooses a machine that has"
            )
        clock = SystemClock()
        num_lanes = plan.num_slots if plan.settings.engines.backend == "mock" else 1
        backends = [engine_backend(plan.settings, clock, os.environ) for _ in range(num_lanes)]
        self._service = EngineService(backends, plan.num_slots, clock)
        await self._service.start()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Read by Ray once the replica is ready, and passed to whoever routes to it."""
        return self._service.facts()

    def check_health(self) -> None:
        self._service.check_health()

    async def answer(self, request: bytes, replica: str) -> AsyncIterator[bytes]:
        """`replica` is for the router on the other side."""
        frames = self._service.answer(request)
        try:
            async for frame in frames:
                yield frame
        finally:
            await frames.aclose()

    async def __del__(self) -> None:
        service = getattr(self, "_service", None)
        if service is not None:
            await service.aclose()


class Ingress:
    """The runtime as an ASGI application inside Ray; `serve.ingress` runs what is built here."""

    def __init__(self, engine: DeploymentHandle[Any], plan: Plan) -> None:
        if plan.device == "gpu" and not ray.cluster_resources().get("GPU"):
            raise ConfigError(
                "ray.device = gpu, and no machine of the cluster has a GPU yet: add one, or leave "
                "ray.device unset"
            )
        host = _proxy_host()
        if host is not None:
            check_exposed(host, plan.settings)
        clock = SystemClock()
        declared = engine_backend(plan.settings, clock, os.environ).info
        info = replace(declared, name="ray", batching=Batching.CONTINUOUS, num_slots=plan.num_slots)
        self._fleet = Fleet(info, HandleLink(engine), clock, num_seats=plan.num_seats)
        self._built = build(plan.settings, backends=self._fleet.seats)
        loop = asyncio.get_running_loop()

        def told(membership: Membership) -> None:
            loop.call_soon_threadsafe(self._fleet.update, membership)

        BOARD.subscribe(ENGINE, told)

    def __serve_build_asgi_app__(self) -> RayDoor:
        return RayDoor(self._built.app)

    def __del__(self) -> None:
        BOARD.unsubscribe(ENGINE)


def _proxy_host() -> str | None:
    """The address that Ray's proxies listen on; None where Ray does not say. Not in its public interface."""
    from ray.serve.context import _get_global_client

    config = getattr(_get_global_client(), "http_config", None)
    host = getattr(config, "host", None)
    return host if isinstance(host, str) else None


def _has_gpu() -> bool:
    if ray.is_initialized():
        return bool(ray.cluster_resources().get("GPU"))
    return _local_gpu()


def _local_gpu() -> bool:
    reader = NvmlReader()
    try:
        return bool(reader.read())
    except GpuUnavailable:
        return False
    finally:
        reader.close()
