from __future__ import annotations

from typing import Any

import pytest

from llm_runtime.deploy.ray_door import RayDoor
from llm_runtime.web.asgi import Message, Receive, Scope, Send

MINE, OTHER = (b"x-request-id", b"mine"), (b"x-request-id", b"mine-2")


async def through(sent: list[tuple[bytes, bytes]], answered: list[tuple[bytes, bytes]]) -> list[Any]:
    """Headers of a reply that the application answers with these."""
    messages: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": answered})
        await send({"type": "http.response.body", "body": b"x"})

    async def receive() -> Message:
        raise AssertionError("nobody reads")

    async def send(message: Message) -> None:
        messages.append(message)

    await RayDoor(app)({"type": "http", "headers": sent}, receive, send)
    assert [message["type"] for message in messages] == ["http.response.start", "http.response.body"]
    headers: list[Any] = messages[0]["headers"]
    return headers


@pytest.mark.parametrize(
    ("sent", "answered", "left"),
    [
        ([MINE], [MINE, (b"a", b"b")], [(b"a", b"b")]),
        ([MINE], [OTHER], [OTHER]),  # ours had to differ: two requests bore the name
        ([], [MINE], [MINE]),
    ],
)
async def test_the_name_that_ray_adds_itself_is_left_out(sent: Any, answered: Any, left: Any) -> None:
    assert await through(sent, answered) == left
