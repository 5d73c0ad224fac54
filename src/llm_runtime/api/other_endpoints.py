"""The endpoints beside chat and completions, for the OpenAPI page. `InferenceEndpoint` serves them."""

from __future__ import annotations

from fastapi import APIRouter

from llm_runtime.api.documented import never_called, responses
from llm_runtime.wire.schemas.embeddings import EmbeddingsRequest
from llm_runtime.wire.schemas.messages import MessagesRequest
from llm_runtime.wire.schemas.rerank import RerankRequest
from llm_runtime.wire.schemas.responses import ResponsesRequest
from llm_runtime.wire.schemas.tokenize import TokenizeRequest


def router() -> APIRouter:
    routes = APIRouter(tags=["inference"])

    @routes.post(
        "/v1/responses",
        responses=responses("A `response` object", "typed events up to `response.completed`", done=False),
        response_model=None,
        summary="Make a response (OpenAI Responses API), where the engine has it",
    )
    async def create_response(body: ResponsesRequest) -> None:
        never_called()

    @routes.post(
        "/v1/messages",
        responses=responses("A `message` object", "typed events up to `message_stop`", done=False),
        response_model=None,
        summary="Continue a conversation (Anthropic Messages API), where the engine has it",
    )
    async def create_message(body: MessagesRequest) -> None:
        never_called()

    @routes.post(
        "/v1/embeddings",
        responses=responses("A list of `embedding` objects"),
        response_model=None,
        summary="Turn texts into vectors, where the engine can",
    )
    async def create_embeddings(body: EmbeddingsRequest) -> None:
        never_called()

    @routes.post(
        "/v1/rerank",
        responses=responses("Documents with their relevance to the query"),
        response_model=None,
        summary="Order documents by relevance, where the engine can",
    )
    async def rerank(body: RerankRequest) -> None:
        never_called()

    @routes.post(
        "/tokenize",
        responses=responses("Token ids, their number and the model's context length"),
        response_model=None,
        summary="Turn a text or a conversation into tokens, where the engine can",
    )
    async def tokenize(body: TokenizeRequest) -> None:
        never_called()

    return routes
