"""A connection of ours goes straight to the endpoint; what else a request passes through is ASGI. A path
with a query takes that way, and nothing else may tell the two apart."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.http import CHAT, Reply, chat_body, connected, post, request_head
from tests.support.scripted import MODEL, ScriptedBackend, answer
from tests.support.server import MOCK, Served, serve

KEYS = {**MOCK, "server.api_keys": "sk-right", "server.max_body_bytes": "2000"}
RIGHT = {"authorization": "Bearer sk-right", "x-request-id": "mine"}
ASGI = f"{CHAT}?by=asgi"
_VARYING = re.compile(rb'"(created|id)":("[^"]*"|\d+)|;dur=[\d.]+')


def shown(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    """Without what differs between any two replies."""
    headers = {name: value for name, value in reply.headers.items() if name != "date"}
    timing = headers.get("server-timing", "").encode()
    headers["server-timing"] = _VARYING.sub(b"", timing).decode()
    return reply.status, headers, _VARYING.sub(b"", reply.body)


async def ask(server: Served, request: bytes) -> tuple[int, dict[str, str], bytes]:
    async with connected(server.port) as connection:
        await connection.send(request)
        return shown(await connection.reply())


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (chat_body(MODEL), RIGHT),
        (chat_body(MODEL, stream=True), RIGHT),
        (chat_body(MODEL, stream=True), {**RIGHT, "x-server-timing": "stream"}),
        (chat_body(MODEL), {**RIGHT, "connection": "close"}),
        (chat_body(MODEL), {**RIGHT, "authorization": "Bearer sk-wrong"}),
        (chat_body(MODEL), {"x-request-id": "mine"}),
        (chat_body(MODEL), {"x-request-id": "mine", "x-api-key": "sk-right"}),
        (chat_body("no-such-model"), RIGHT),
        (chat_body(MODEL, messages=[]), RIGHT),
        (chat_body(MODEL, user="x" * 3000), RIGHT),
        (chat_body(MODEL), {**RIGHT, "content-type": "text/plain"}),
        (chat_body(MODEL), {**RIGHT, "content-type": "application/json; charset=utf-8"}),
        (chat_body(MODEL), {**RIGHT, "x-max-attempts": "none"}),
    ],
)
async def test_a_reply_is_the_same(body: Any, headers: dict[str, str]) -> None:
    async with serve(KEYS, backend=ScriptedBackend(on_open=answer("a", "b"))) as server:
        assert CHAT.encode() in server.server.config.loaded_app.cycle_endpoints
        straight = await ask(server, post(body, headers=headers))
        by_asgi = await ask(server, post(body, ASGI, headers=headers))
        assert straight == by_asgi
        await server.at_rest()


async def test_another_method_is_told_what_it_may() -> None:
    async with serve(KEYS) as server:
        for path in (CHAT, ASGI):
            async with connected(server.port) as connection:
                await connection.send(request_head("GET", path, {"host": "x", **RIGHT}))
                reply = await connection.reply()
                assert (reply.status, reply.headers["allow"]) == (405, "POST")


async def test_one_connection_may_come_with_one_key_after_the_other() -> None:
    """The connection knows its caller again, and nobody else."""
    two = {**KEYS, "server.api_keys": "sk-right,sk-other"}
    async with (
        serve(two, backend=ScriptedBackend(on_open=answer("a"))) as server,
        connected(server.port) as connection,
    ):
        seen = []
        for key in ("right", "right", "wrong", "righ", "right2", "right", "other", "other", "right", ""):
            authorization = {"authorization": f"Bearer sk-{key}"} if key else {}
            await connection.send(post(chat_body(MODEL), headers=authorization))
            seen.append((await connection.reply()).status)
        assert seen == [200, 200, 401, 401, 401, 200, 200, 200, 200, 401]
        await server.settled(6)
        tenants = [record.request.tenant for record in server.recorder.records]
        right, other = tenants[0], tenants[3]
        assert tenants == [right, right, right, other, other, right]
        assert right != other
