"""Keys, secrets and prompts: who may ask, and what must never be seen anywhere."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import BackendError
from tests.support.http import CHAT, Reply, ask, chat_body, connected, get, post, request_head
from tests.support.scripted import MODEL, ScriptedBackend, ScriptedStream, answer
from tests.support.server import MOCK, serve

KEY = "sk-CLIENTSECRET0001"
OTHER = "sk-CLIENTSECRET0002"
WRONG = "sk-WRONGSECRET0003"
PROMPT = "PROMPT-MARKER"
ANSWER = "ANSWER-MARKER"
WITH_KEYS = {**MOCK, "server.api_keys": f"{KEY},{OTHER}"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def prompt(**fields: Any) -> dict[str, Any]:
    return chat_body(MODEL, **{"messages": [{"role": "user", "content": PROMPT}], **fields})


@pytest.mark.parametrize(
    "headers",
    [{}, bearer(WRONG), {"authorization": "Basic abc"}, {"authorization": KEY}, {"authorization": "Bearer"},
     {"authorization": f"Bearer {KEY} x"}, bearer("x" * 5000), {"x-api-key": WRONG}],
    ids=["none", "wrong", "basic", "bare", "empty", "two words", "long", "x-api-key"],
)  # fmt: skip
async def test_without_a_good_key(headers: dict[str, str]) -> None:
    async with serve(WITH_KEYS) as server, connected(server.port) as connection:
        for request in (
            post(chat_body("mock"), headers=headers),
            post(chat_body("mock", stream=True), headers=headers),
            post(b"not even JSON", headers=headers),
            *(
                request_head("GET", path, {"host": "x", **headers})
                for path in ("/v1/models", "/v1/models/mock", "/metrics", "/load", "/version", "/docs",
                             "/openapi.json", "/nowhere")
            ),
        ):  # fmt: skip
            await connection.send(request)
            reply = await connection.reply()
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
            assert (reply.error["code"], reply.error["type"]) == ("invalid_api_key", "authentication_error")
            assert "SECRET" not in reply.error["message"]
        assert server.recorder.accepted_ids == []
        assert {(status, reason) for _, status, reason in server.recorder.refusals} == {
            (401, "invalid_api_key")
        }


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/health/"])
async def test_f55_i_probes_need_no_key(path: str) -> None:
    async with serve(WITH_KEYS) as server:
        for headers in ({}, bearer(WRONG), bearer(KEY)):
            assert (await get(server.port, path, headers)).status == 200


@pytest.mark.parametrize("headers", [bearer(KEY), {"authorization": f"bearer  {OTHER}"}, {"x-api-key": KEY}])
async def test_with_a_key(headers: dict[str, str]) -> None:
    async with serve(WITH_KEYS) as server:
        reply = await ask(server.port, post(chat_body("mock", max_tokens=1), headers=headers))
        assert reply.status == 200
        for path in ("/v1/models", "/metrics", "/load", "/docs", "/openapi.json"):
            assert (await get(server.port, path, headers)).status == 200


async def test_the_tenant_is_the_keys_and_not_the_headers() -> None:
    backend = ScriptedBackend(on_open=answer("a"))
    async with serve(WITH_KEYS, backend=backend) as server:
        await ask(server.port, post(prompt(), headers={**bearer(KEY), "x-tenant-id": "somebody-else"}))
        assert backend.streams[0].request.tenant == f"key-{hashlib.sha256(KEY.encode()).hexdigest()[:8]}"
    async with serve(backend=(backend := ScriptedBackend(on_open=answer("a")))) as server:
        await ask(server.port, post(prompt(), headers={"x-tenant-id": "team-1"}))
        await ask(server.port, post(prompt(), headers={"x-tenant-id": "a b"}))
        assert [stream.request.tenant for stream in backend.streams] == ["team-1", "anonymous"]


@pytest.mark.parametrize("log_format", ["json", "console"])
async def test_f58_a_b_d_f_h_no_secret_and_no_prompt_anywhere(
    capfd: pytest.CaptureFixture[str], log_format: str
) -> None:
    """At the most talkative level, with everything that can go wrong."""
    seen: list[str] = []

    def speak(engine: ScriptedStream) -> None:
        if engine.request.body.get("user") == "fail":
            engine.fail(BackendError("the engine failed"))
        elif engine.request.body.get("user") == "crash":
            engine.fail(ValueError(f"cannot handle {PROMPT} of {KEY}"))
        else:
            engine.say(ANSWER)
            engine.end()

    logs = {"telemetry.log_level": "debug", "telemetry.log_format": log_format}
    async with serve({**WITH_KEYS, **logs}, backend=ScriptedBackend(on_open=speak)) as server:

        async def send(request: bytes) -> Reply:
            async with connected(server.port) as connection:
                await connection.send(request)
                reply = await connection.reply()
            seen.append(f"{reply.headers} {reply.body.decode() if reply.status != 200 else ''}")
            return reply

        for stream in (False, True):
            assert (await send(post(prompt(stream=stream), headers=bearer(KEY)))).status == 200
            assert (await send(post(prompt(stream=stream, user="fail"), headers=bearer(KEY)))).status == 502
            assert (await send(post(prompt(stream=stream, user="crash"), headers=bearer(KEY)))).status == 500
        assert (await send(post(prompt(), headers=bearer(WRONG)))).status == 401
        assert (await send(post(prompt(), headers={"authorization": f"Token {WRONG}"}))).status == 401
        assert (await send(post(prompt(), f"{CHAT}?api_key={KEY}"))).status == 401
        assert (await send(request_head("GET", f"/v1/models?api_key={KEY}", {"host": "x"}))).status == 401
        assert (await send(post(prompt(temperature=PROMPT), headers=bearer(KEY)))).status == 400
        assert (await send(post(prompt(messages=PROMPT), headers=bearer(KEY)))).status == 400
        assert (await send(post(PROMPT.encode(), headers=bearer(KEY)))).status == 400
        for path in ("/metrics", "/metrics?format=prometheus", "/load", "/openapi.json", "/version"):
            seen.append((await get(server.port, path, bearer(KEY))).body.decode())
    out, err = capfd.readouterr()
    everything = "\n".join([*seen, out, err])
    for secret in ("CLIENTSECRET", "WRONGSECRET", PROMPT, ANSWER):
        assert secret not in everything
    assert "request.settled" in everything
    assert "request.crashed" in everything


async def test_f58_g_a_forged_id_forges_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    """One JSON object per line, whatever a client sends."""
    logs = {"telemetry.log_level": "debug", "telemetry.log_format": "json"}
    async with serve({**MOCK, **logs}, backend=ScriptedBackend(on_open=answer("a"))) as server:
        for forged in (
            b'a","level":"error',
            b"a\tb",
            b"x" * 9000,
            "a\u2028b\U0001f600".encode(),
            b"safe-1",
            b"safe-1",
        ):
            raw = post(chat_body(MODEL)).replace(b"\r\n\r\n", b"\r\nx-request-id: " + forged + b"\r\n\r\n", 1)
            assert (await ask(server.port, raw)).status == 200
        # A line end inside a header is no header: the server does not even parse it.
        raw = post(chat_body(MODEL)).replace(b"\r\n\r\n", b"\r\nx-request-id: a\rforged\r\n\r\n", 1)
        assert (await ask(server.port, raw)).status == 400
    out, err = capfd.readouterr()
    lines = [orjson.loads(line) for line in (out + err).splitlines() if line]
    assert not any("forged" in str(line) for line in lines)
    settled = [line["request_id"] for line in lines if line["event"] == "request.settled"]
    assert len(settled) == 6
    assert settled.count("safe-1") == 2
