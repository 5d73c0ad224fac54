"""A gateway as it is usually written: FastAPI, a pydantic model, httpx, StreamingResponse.

FROZEN. It is the yardstick of continuous integration; repair nothing here. It does less than a
gateway must (no admission, no accounting, no limits), so whoever costs more than it costs too much.

    UPSTREAM_URL=http://127.0.0.1:9000 uvicorn baseline_proxy:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[Message]
    stream: bool = False
    temperature: float | None = None
    max_tokens: int | None = None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    async with httpx.AsyncClient(
        base_url=os.environ["UPSTREAM_URL"], timeout=httpx.Timeout(300), limits=limits
    ) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/v1/chat/completions")
async def chat_completions(request: ChatRequest) -> Response:
    client: httpx.AsyncClient = app.state.client
    body = request.model_dump(exclude_none=True)
    if not request.stream:
        reply = await client.post("/v1/chat/completions", json=body)
        return Response(reply.content, reply.status_code, media_type="application/json")
    upstream = await client.send(client.build_request("POST", "/v1/chat/completions", json=body), stream=True)

    async def relay() -> AsyncIterator[bytes]:
        try:
            async for chunk in upstream.aiter_bytes():
                yield chunk
        finally:
            await upstream.aclose()

    return StreamingResponse(relay(), upstream.status_code, media_type="text/event-stream")
