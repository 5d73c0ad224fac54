"""The application: inference endpoints in front, everything else by FastAPI, one error shape.

FastAPI still knows the inference routes, for the OpenAPI page; requests never reach it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from llm_runtime.api import admin, chat, completions, models, ops, other_endpoints
from llm_runtime.api.documented import OTHER_ERRORS
from llm_runtime.api.faults import handle_faults
from llm_runtime.api.front import Front, ServerSend
from llm_runtime.api.inference import InferenceEndpoint
from llm_runtime.api.services import Services
from llm_runtime.web.asgi import ASGIApp
from llm_runtime.web.rate_limits import RATE_LIMIT_HEADERS

EXPOSED_HEADERS = (
    "x-request-id", "retry-after", "retry-after-ms", "x-should-retry", "server-timing", *RATE_LIMIT_HEADERS,
)  # fmt: skip


class RuntimeApp(FastAPI):
    """FastAPI behind a door of our own, which most requests never pass. `attach` must come before the
    first request.

    cycle_endpoints: for connections of ours (`web/protocol.py`), which may go straight to them.
    """

    _door: ASGIApp | None = None

    def attach(self, services: Services, hot_paths: Mapping[str, InferenceEndpoint]) -> None:
        self.cycle_endpoints: Mapping[bytes, InferenceEndpoint] = {}
        door: ASGIApp = Front(super().__call__, hot_paths, services)
        origins = services.server.cors_allow_origins
        if origins:
            # Around everything, so that a preflight needs no key and errors carry the headers too.
            cors: Any = CORSMiddleware(
                cast("Any", door),
                allow_origins=list(origins),
                allow_methods=["GET", "POST", "OPTIONS"],
                allow_headers=["*"],
                expose_headers=EXPOSED_HEADERS,
            )
            door = ServerSend(cors)
        else:
            self.cycle_endpoints = {path.encode(): endpoint for path, endpoint in hot_paths.items()}
        self._door = door

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._door is not None
        await self._door(scope, receive, send)


def create_app(
    services: Services,
    hot_paths: Mapping[str, InferenceEndpoint],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
) -> RuntimeApp:
    """The ASGI application; it holds no state of its own."""
    app = RuntimeApp(
        title="LLM Runtime",
        version=services.version,
        description="OpenAI-compatible serving of large language models.",
        lifespan=lifespan,
        redirect_slashes=False,
        redoc_url=None,
        responses=OTHER_ERRORS,
    )
    app.attach(services, hot_paths)
    handle_faults(app, services.events)
    for router in (
        chat.router(),
        completions.router(),
        other_endpoints.router(),
        models.router(services),
        ops.router(services),
    ):
        app.include_router(router)
    if services.admin_keys.enabled:
        app.include_router(admin.router(services))
    return app
