"""What Ray's HTTP proxy does differently from a server of our own, put right around the application."""

from __future__ import annotations

from llm_runtime.web.asgi import ASGIApp, Message, Receive, Scope, Send, headers_of


class RayDoor:
    """An ASGI application. Ray's proxy adds the `x-request-id` that it passed on; ours would be a second."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = headers_of(scope).get(b"x-request-id")

        async def send_once(message: Message) -> None:
            if given is not None and message["type"] == "http.response.start":
                message["headers"] = [
                    (key, value)
                    for key, value in message["headers"]
                    if not (key == b"x-request-id" and value == given)
                ]
            await send(message)

        await self._app(scope, receive, send_once)
