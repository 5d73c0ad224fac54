"""Responses and Messages over the real engine, as their clients use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from llm_runtime.core.outcome import Outcome
from tests.engines.llama_cpp.conftest import MODEL
from tests.support.http import ask, connected, post
from tests.support.server import MOCK, Served, serve

pytestmark = pytest.mark.engine

LONG = "Tell me everything about rivers. " * 120
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
BOTH = pytest.mark.parametrize("path", [RESPONSES, MESSAGES])


def body(path: str, text: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    shared = {"model": MODEL, "temperature": 0, **more}
    if path == MESSAGES:
        return {**shared, "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}
    return {**shared, "max_output_tokens": max_tokens, "input": text}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    settings = {**MOCK, "engines.backend": "llama.cpp", "engines.llama_cpp.n_threads": "1"}
    async with serve(settings, engines__native_backend_concurrency="2") as it:
        yield it


async def test_all_three_say_the_same(served: Served) -> None:
    chat = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    chat["messages"] = [{"role": "user", "content": "Say hi"}]
    expected = (await ask(served.port, post(chat))).json()
    text, usage = expected["choices"][0]["message"]["content"], expected["usage"]
    response = (await ask(served.port, post(body(RESPONSES, "Say hi", 8), RESPONSES))).json()
    message = (await ask(served.port, post(body(MESSAGES, "Say hi", 8), MESSAGES))).json()
    assert response["output"][0]["content"][0]["text"] == text
    assert message["content"][0]["text"] == text
    assert response["usage"]["input_tokens"] == usage["prompt_tokens"]
    assert response["usage"]["output_tokens"] == usage["completion_tokens"]
    assert message["usage"]["output_tokens"] == usage["completion_tokens"]
    for path in (RESPONSES, MESSAGES):
        stream = await ask(served.port, post(body(path, "Say hi", 8, stream=True), path))
        datas = [block.partition(b"\ndata: ")[2] for block in stream.body.split(b"\n\n") if block]
        events = [orjson.loads(data) for data in datas]
        pieces = [
            event["delta"]["text"] if path == MESSAGES else event["delta"]
            for event in events
            if event["type"] in ("content_block_delta", "response.output_text.delta")
        ]
        assert "".join(pieces) == text
    await served.at_rest()
    assert not any(record.usage.estimated for record in served.recorder.records)


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_left_in_prefill_the_slot_is_free_soon(served: Served, path: str, stream: bool) -> None:
    """As for a chat: the engine has to say that it has let go."""
    async with connected(served.port) as client:
        await client.send(post(body(path, LONG, 400, stream=stream), path))
        await served.recorder.until(lambda: bool(served.recorder.dispatches), "it is dispatched")
    await served.at_rest()
    (record,) = served.recorder.records
    assert record.outcome is Outcome.CANCELLED
    assert record.usage.completion_tokens < 400
    assert (await ask(served.port, post(body(path, "Say hi", 2), path))).status == 200
