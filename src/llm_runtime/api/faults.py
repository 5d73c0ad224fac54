"""What FastAPI's part of the application answers when something is wrong: the one error shape."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from llm_runtime.core.errors import InvalidRequest, LLMRuntimeError, MethodNotAllowed, RouteNotFound
from llm_runtime.core.events import Events
from llm_runtime.web.asgi import headers_of, request_id_of
from llm_runtime.web.errors import INTERNAL_ERROR, error_response, row_of

log = structlog.get_logger(__name__)


def handle_faults(app: FastAPI, events: Events) -> None:
    """Installs the handlers; each reply is counted as a refusal."""

    def reply(request: Request, error: LLMRuntimeError, extra: Mapping[str, str] | None = None) -> Response:
        events.refused("other", row_of(error).status, error.reason)
        status, headers, body = error_response(error, request_id_of(headers_of(request.scope)))
        response = Response(body, status_code=status)
        for key, value in headers:
            response.headers[key.decode()] = value.decode()
        for name, text in (extra or {}).items():
            response.headers[name] = text
        return response

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return reply(request, RouteNotFound("There is nothing at this path."))
        if error.status_code == 405:
            allow = (error.headers or {}).get("Allow", "").replace("GET", "GET, HEAD")
            fault = MethodNotAllowed("This path does not accept this method.")
            return reply(request, fault, {"allow": allow} if allow else None)
        return reply(request, InvalidRequest(str(error.detail)))

    async def on_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return reply(request, InvalidRequest(f"Invalid value: {first['msg']}", param=where or None))

    async def on_runtime_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, LLMRuntimeError)
        return reply(request, error)

    async def on_crash(request: Request, error: Exception) -> Response:
        log.error("request.crashed", path=request.url.path, error=type(error).__name__)
        return reply(request, INTERNAL_ERROR)

    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(LLMRuntimeError, on_runtime_error)
    app.add_exception_handler(Exception, on_crash)
