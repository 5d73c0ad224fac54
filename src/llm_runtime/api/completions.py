"""`POST /v1/completions`, for the OpenAPI page. It is served by `InferenceEndpoint`."""

from __future__ import annotations

from fastapi import APIRouter

from llm_runtime.api.documented import never_called, responses
from llm_runtime.wire.schemas.completions import CompletionsRequest


def router() -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["inference"])

    @routes.post(
        "/completions",
        responses=responses("A `text_completion` object", "`text_completion` objects"),
        response_model=None,
        summary="Continue a text",
    )
    async def completions(body: CompletionsRequest) -> None:
        never_called()

    return routes
