"""Health, version, load and metrics: what operators and load balancers ask."""

from __future__ import annotations

from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request, Response

from llm_runtime.api.services import Services
from llm_runtime.engines.base import BackendState
from llm_runtime.telemetry.prometheus import negotiate
from llm_runtime.telemetry.snapshot import json_snapshot

FORMATS = {
    "json": "application/json",
    "prometheus": "text/plain",
    "openmetrics": "application/openmetrics-text",
}


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["operations"])
    runtime = services.runtime

    @routes.get("/health/live")
    @routes.get("/v1/health/live", include_in_schema=False)
    async def live(response: Response) -> dict[str, Any]:
        """The process works. Not about engines: a dead engine is not cured by killing the server."""
        if runtime.fatal_reason is not None:
            response.status_code = 503
            return {"status": "failed", "reason": runtime.fatal_reason}
        return {"status": "alive"}

    @routes.get("/health")
    @routes.get("/health/ready")
    @routes.get("/v1/health/ready", include_in_schema=False)
    async def ready(response: Response) -> dict[str, Any]:
        """Whether requests sent now can be served."""
        readiness = runtime.readiness()
        if readiness.ready:
            return {"status": "ok"}
        response.status_code = 503
        response.headers["retry-after"] = "1"
        return {"status": "unavailable", "reason": readiness.reason}

    @routes.get("/version")
    async def version() -> dict[str, Any]:
        """With the settings that shape what a benchmark of this server finds."""
        return {"version": services.version, "settings": services.settings}

    @routes.get("/load")
    async def load() -> dict[str, Any]:
        """In slots and requests, per model: what an outer balancer needs."""
        pools = [
            {
                "model": pool.model,
                "endpoints": sorted(kind.value for kind in pool.kinds),
                "num_waiting": pool.dispatcher.num_waiting,
                "num_running": pool.dispatcher.num_running,
                "num_slots": pool.dispatcher.num_slots,
                "num_free_slots": pool.dispatcher.num_free_slots,
                "replicas": {
                    replica.id: {
                        "state": replica.status.state.value,
                        "num_slots": replica.num_slots,
                        "num_taken_slots": replica.num_taken,
                    }
                    for replica in pool.dispatcher.replicas.values()
                    if replica.backend.status.state is not BackendState.ABSENT
                },
            }
            for pool in runtime.pools
        ]
        return {"server_load": runtime.num_active, "draining": runtime.draining, "pools": pools}

    @routes.get("/metrics")
    async def metrics(
        request: Request, format: Literal["json", "prometheus", "openmetrics"] | None = None
    ) -> Response:
        """JSON by default; Prometheus or OpenMetrics text by `Accept` or `?format=`."""
        accept = FORMATS[format] if format is not None else request.headers.get("accept")
        if negotiate(accept) is None:
            body = orjson.dumps(json_snapshot(services.metrics), option=orjson.OPT_NON_STR_KEYS)
            return Response(body, media_type="application/json")
        text, content_type = await services.exporter.render_in_turns(accept)
        return Response(text, headers={"content-type": content_type})

    return routes
