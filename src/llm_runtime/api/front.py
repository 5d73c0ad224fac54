"""The first ASGI application to see a request: hot paths, then keys, then everything else."""

from __future__ import annotations

from collections.abc import Mapping

from llm_runtime.admission.auth import ApiKeys
from llm_runtime.api.admin import ADMIN_PREFIX
from llm_runtime.api.services import Services
from llm_runtime.core.errors import LLMRuntimeError, MethodNotAllowed, Unauthorized
from llm_runtime.web.asgi import (
    SERVER_SEND,
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    headers_of,
    request_id_of,
    send_error,
)
from llm_runtime.web.errors import row_of

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/v1/health/live", "/v1/health/ready"})
"""What probes ask, who have no key."""


class Front:
    """Holds no state. `hot`: endpoints that take POST only, by path; `rest`: the FastAPI part."""

    def __init__(self, rest: ASGIApp, hot: Mapping[str, ASGIApp], services: Services) -> None:
        self._rest = rest
        self._hot = hot
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        path = _path_of(scope)
        endpoint = self._hot.get(path)
        if endpoint is None:
            await self._other(path, scope, receive, send)
        elif scope["method"] == "POST":
            await endpoint(scope, receive, send)
        else:
            error = MethodNotAllowed(f"{path} only accepts POST.")
            self._count(error)
            await send_error(send, error, request_id_of(headers_of(scope)), extra=[(b"allow", b"POST")])

    async def _other(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        request_id = request_id_of(headers)
        if path not in OPEN_PATHS:
            try:
                self._keys_for(path).identify(
                    headers.get(b"authorization"), x_api_key=headers.get(b"x-api-key")
                )
            except Unauthorized as error:
                self._count(error)
                await send_error(send, error, request_id)
                return
        is_head = scope["method"] == "HEAD"
        inner = {**scope, "path": scope.get("root_path", "") + path}
        if is_head:
            inner["method"] = "GET"

        async def send_outer(message: Message) -> None:
            if message["type"] == "http.response.start":
                if not any(key == b"x-request-id" for key, _ in message["headers"]):
                    message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        await self._rest(inner, receive, send_outer)

    def _keys_for(self, path: str) -> ApiKeys:
        """Without admin keys there is nothing below the prefix, which anybody with a key may know."""
        admin = self._services.admin_keys
        return admin if admin.enabled and path.startswith(ADMIN_PREFIX) else self._services.keys

    def _count(self, error: LLMRuntimeError) -> None:
        self._services.events.refused("other", row_of(error).status, error.reason)


class ServerSend:
    """Leaves the server's own `send` in the scope, for what a middleware around it would hide."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SERVER_SEND] = send
        await self._app(scope, receive, send)


def _path_of(scope: Scope) -> str:
    """Below the mount point, and as if a slash at the end were not there: a redirect to the other
    spelling would lose the client's key."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root):
        path = path[len(root) :]
    if len(path) > 1 and path[-1] == "/":
        path = path.rstrip("/")
    return path or "/"
