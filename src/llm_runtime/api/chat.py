"""`POST /v1/chat/completions`, for the OpenAPI page. It is served by `InferenceEndpoint`."""

from __future__ import annotations

from fastapi import APIRouter

from llm_runtime.api.documented import never_called, responses
from llm_runtime.wire.schemas.chat import ChatRequest


def router() -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["inference"])

    @routes.post(
        "/chat/completions",
        responses=responses("A `chat.completion` object", "`chat.completion.chunk` objects"),
        response_model=None,
        summary="Continue a conversation",
    )
    async def chat_completions(body: ChatRequest) -> None:
        never_called()

    return routes
