"""`/admin/...`: what only operators may see. The door in front asks for an admin key."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from llm_runtime.api.services import Services

ADMIN_PREFIX = "/admin/"


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix=ADMIN_PREFIX.rstrip("/"), tags=["admin"])

    @routes.get("/queue")
    async def queue() -> dict[str, Any]:
        """Per class and tenant: waiting, running, service received; why the first in the queue waits, and how
        long a request that came now would."""
        return services.queue_report()

    return routes
