"""The application: inference endpoints in front, everything else by FastAPI, one error shape.

FastAPI still knows the inference routes, for the OpenAPI page; requests never reach it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp as StarletteApp

from llm_runtime.api import models, ops
from llm_runtime.api.inference import InferenceEndpoint
from llm_runtime.api.services import Services
from llm_runtime.core.errors import (
    InvalidRequest,
    LLMRuntimeError,
    MethodNotAllowed,
    RouteNotFound,
    Unauthorized,
)
from llm_runtime.web.asgi import ASGIApp, Message, Receive, Scope, Send, header, request_id_of, send_error
from llm_runtime.web.config import ServerConfig
from llm_runtime.web.errors import INTERNAL_ERROR, error_response, row_of

log = structlog.get_logger(__name__)

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/v1/health/live", "/v1/health/ready"})
EXPOSED_HEADERS = ["x-request-id", "retry-after", "retry-after-ms", "server-timing"]


class Front:
    """The first ASGI application to see a request: hot paths, then keys, then FastAPI."""

    def __init__(self, rest: ASGIApp, hot: Mapping[str, ASGIApp], services: Services) -> None:
        self._rest = rest
        self._hot = hot
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        path = scope["path"]
        endpoint = self._hot.get(path)
        if endpoint is None and len(path) > 1 and path.endswith("/"):
            # Served as if the slash were not there: a redirect would lose the client's key.
            path = path.rstrip("/") or "/"
            scope["path"] = path
            endpoint = self._hot.get(path)
        if endpoint is None:
            await self._other(scope, receive, send)
        elif scope["method"] == "POST":
            await endpoint(scope, receive, send)
        else:
            error = MethodNotAllowed(f"{path} only accepts POST.")
            await send_error(send, error, request_id_of(scope), [(b"allow", b"POST")])

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = request_id_of(scope)
        if scope["path"] not in OPEN_PATHS:
            try:
                self._services.keys.identify(header(scope, b"authorization"))
            except Unauthorized as error:
                self._services.events.refused("other", row_of(error).status, error.reason)
                await send_error(send, error, request_id)
                return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start" and not any(
                key == b"x-request-id" for key, _ in message["headers"]
            ):
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        await self._rest(scope, receive, send_with_id)


class RuntimeApp(FastAPI):
    """FastAPI with a door of its own for the hot paths. `attach` must come before the first request."""

    hot_paths: Mapping[str, InferenceEndpoint]
    services: Services | None = None
    server_config: ServerConfig

    def attach(self, services: Services, hot_paths: Mapping[str, InferenceEndpoint]) -> None:
        self.services = services
        self.hot_paths = hot_paths

    def build_middleware_stack(self) -> StarletteApp:
        assert self.services is not None
        front: Any = Front(super().build_middleware_stack(), self.hot_paths, self.services)
        origins = self.services.server.cors_allow_origins
        if origins:
            # Outermost, so that a preflight needs no key and errors carry the header too.
            front = CORSMiddleware(
                front,
                allow_origins=list(origins),
                allow_methods=["GET", "POST", "OPTIONS"],
                allow_headers=["*"],
                expose_headers=EXPOSED_HEADERS,
            )
        app: StarletteApp = front
        return app


def create_app(
    services: Services,
    hot_paths: Mapping[str, InferenceEndpoint],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
) -> RuntimeApp:
    """The ASGI application; it holds no state of its own."""
    app = RuntimeApp(title="LLM Runtime", version=services.version, lifespan=lifespan, redirect_slashes=False)
    app.attach(services, hot_paths)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(LLMRuntimeError, _on_runtime_error)
    app.add_exception_handler(Exception, _on_crash)
    app.include_router(ops.router(services))
    app.include_router(models.router(services))
    return app


def _reply(request: Request, error: LLMRuntimeError, extra: Mapping[str, str] | None = None) -> Response:
    status, headers, body = error_response(error, request_id_of(request.scope))
    response = Response(body, status_code=status)
    for key, value in headers:
        response.headers[key.decode()] = value.decode()
    for name, text in (extra or {}).items():
        response.headers[name] = text
    return response


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _reply(request, RouteNotFound("There is nothing at this path."))
    if error.status_code == 405:
        return _reply(request, MethodNotAllowed("This path does not accept this method."), error.headers)
    return _reply(request, InvalidRequest(str(error.detail)))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return _reply(request, InvalidRequest(f"Invalid value: {first['msg']}", param=where or None))


async def _on_runtime_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LLMRuntimeError)
    return _reply(request, error)


async def _on_crash(request: Request, error: Exception) -> Response:
    log.error("request.crashed", path=request.url.path, error=type(error).__name__)
    return _reply(request, INTERNAL_ERROR)
