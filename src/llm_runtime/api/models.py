"""`/v1/models`: what can be asked for."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from llm_runtime.api.services import Services
from llm_runtime.core.errors import ModelNotFound
from llm_runtime.runtime.pools import Pool


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["models"])

    @routes.get("/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(*item) for item in services.runtime.models.items()]}

    @routes.get("/models/{model:path}")
    async def get_model(model: str) -> dict[str, Any]:
        pool = services.runtime.models.get(model)
        if pool is None:
            raise ModelNotFound("The model does not exist.", param="model")
        return _model(model, pool)

    return routes


def _model(name: str, pool: Pool) -> dict[str, Any]:
    info = pool.info
    return {
        "id": name,
        "object": "model",
        "created": info.model_created,
        "owned_by": info.name,
        "max_model_len": info.context_tokens,
    }
