"""Browsers: preflights need no key, and every reply to an allowed origin can be read there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from llm_runtime.core.errors import BackendError
from tests.support.http import CHAT, Reply, chat_body, connected, post, request_head
from tests.support.scripted import MODEL, ScriptedBackend, ScriptedStream
from tests.support.server import MOCK, Served, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

UI = "http://ui.example"
EVIL = "http://evil.example"
KEY = {"authorization": "Bearer sk-good-key-1"}
SETTINGS = {
    **MOCK,
    "server.api_keys": "sk-good-key-1",
    "server.cors_allow_origins": UI,
    "admission.request_rate_limit_per_s": "0.001",
    "admission.request_rate_limit_burst": "4",
}


def speak(engine: ScriptedStream) -> None:
    if engine.request.body.get("user") == "fail":
        engine.fail(BackendError("broke"))
    else:
        engine.say("a")
        engine.end()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Served]:
    async with serve(SETTINGS, backend=ScriptedBackend(on_open=speak)) as served:
        yield served


async def send(server: Served, request: bytes) -> Reply:
    async with connected(server.port) as connection:
        await connection.send(request)
        return await connection.reply()


def preflight(path: str, origin: str = UI) -> bytes:
    headers = {
        "host": "test",
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    return request_head("OPTIONS", path, headers)


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/metrics", "/nowhere"])
async def test_f56_a_preflight_needs_no_key_and_takes_no_token(server: Served, path: str) -> None:
    for _ in range(10):
        reply = await send(server, preflight(path))
        assert reply.status in (200, 204)
        assert reply.headers["access-control-allow-origin"] == UI
        assert "POST" in reply.headers["access-control-allow-methods"]
        allowed = reply.headers["access-control-allow-headers"].lower()
        assert all(name in allowed for name in ("authorization", "content-type", "x-stainless-os"))
    assert server.recorder.rejections == []


async def test_f56_another_origin_gets_nothing(server: Served) -> None:
    reply = await send(server, preflight(CHAT, EVIL))
    assert "access-control-allow-origin" not in reply.headers
    reply = await send(server, request_head("GET", "/health", {"host": "x", "origin": EVIL}))
    assert reply.status == 200
    assert "access-control-allow-origin" not in reply.headers


async def test_f56_every_reply_can_be_read(server: Served) -> None:
    origin = {"origin": UI}
    replies = {
        "plain": (200, post(chat_body(MODEL), headers={**KEY, **origin})),
        "stream": (200, post(chat_body(MODEL, stream=True), headers={**KEY, **origin})),
        "no key": (401, post(chat_body(MODEL), headers=origin)),
        "bad JSON": (400, post(b"{", headers={**KEY, **origin})),
        "engine": (502, post(chat_body(MODEL, user="fail"), headers={**KEY, **origin})),
        "path": (404, post(chat_body(MODEL), "/nowhere", {**KEY, **origin})),
        "method": (405, request_head("GET", CHAT, {"host": "x", **origin})),
        "last": (200, post(chat_body(MODEL), headers={**KEY, **origin})),
        "rate": (429, post(chat_body(MODEL), headers={**KEY, **origin})),
    }
    for name, (status, request) in replies.items():
        reply = await send(server, request)
        assert reply.status == status, name
        assert reply.headers["access-control-allow-origin"] == UI, name
        exposed = reply.headers["access-control-expose-headers"].lower()
        assert all(header in exposed for header in ("x-request-id", "retry-after", "retry-after-ms"))
        assert "access-control-allow-credentials" not in reply.headers
        assert "origin" in reply.headers["vary"].lower()


async def test_f56_without_an_origin_nothing_is_added(server: Served) -> None:
    reply = await send(server, request_head("GET", "/health", {"host": "x"}))
    assert not any(name.startswith("access-control") for name in reply.headers)


async def test_f56_off_by_default() -> None:
    async with serve() as server:
        reply = await send(server, preflight(CHAT))
        assert reply.status == 405
        reply = await send(server, post(chat_body("mock", max_tokens=1), headers={"origin": UI}))
        assert reply.status == 200
        assert not any(name.startswith("access-control") for name in reply.headers)
