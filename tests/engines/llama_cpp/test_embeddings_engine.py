"""Embeddings and tokenize on the real engine, alone and through the whole server."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import ContextLengthExceeded, InvalidRequest
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.llama_cpp.backend import LlamaCppBackend
from tests.engines.driving import Opened, freed, make_request, open_batch
from tests.engines.llama_cpp.conftest import MODEL
from tests.support.http import ask, post
from tests.support.server import MOCK, Served, serve

pytestmark = pytest.mark.engine

WIDTH = 576
WITHIN_S = 60.0
_serial = iter(range(10**9))


def request(kind: EndpointKind, **body: Any) -> RuntimeRequest:
    body = {"model": MODEL, **body}
    return RuntimeRequest(
        id=f"e-{next(_serial)}", model=MODEL, kind=kind, body=body, arrived_at=0.0, created=1
    )


async def answer(opened: Opened) -> dict[str, Any]:
    async with asyncio.timeout(WITHIN_S):
        body = await opened.stream.__anext__()
        assert isinstance(body, bytes)
        assert opened.stream.finished is not None
        assert await opened.stream.__anext__() == opened.stream.finished
    await freed(opened, 5.0)
    parsed: dict[str, Any] = orjson.loads(body)
    return parsed


async def embed(backend: LlamaCppBackend, **body: Any) -> dict[str, Any]:
    (opened,) = open_batch(backend, [request(EndpointKind.EMBEDDINGS, **body)])
    return await answer(opened)


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


async def test_embeddings_mean_something(backend: LlamaCppBackend) -> None:
    texts = ["The cat sits on the mat.", "A kitten is resting on a rug.", "Stock markets fell on Monday."]
    body = await embed(backend, input=texts)
    assert [item["index"] for item in body["data"]] == [0, 1, 2]
    cat, kitten, stocks = (item["embedding"] for item in body["data"])
    assert len(cat) == WIDTH
    assert math.isclose(cosine(cat, cat), 1.0, abs_tol=1e-3), "of unit length"
    assert cosine(cat, kitten) > cosine(cat, stocks) + 0.05
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 15
    alone = await embed(backend, input=texts[1])
    assert cosine(alone["data"][0]["embedding"], kitten) > 0.999


async def test_base64_is_the_same_numbers(backend: LlamaCppBackend) -> None:
    plain = (await embed(backend, input="Hello"))["data"][0]["embedding"]
    packed = (await embed(backend, input="Hello", encoding_format="base64"))["data"][0]["embedding"]
    numbers = struct.unpack(f"<{WIDTH}f", base64.b64decode(packed))
    assert numbers == pytest.approx(plain, abs=1e-5)


async def test_any_length_within_the_context(backend: LlamaCppBackend) -> None:
    """Longer than the engine's batch of 16 by far; above the context it is a fault of the client's."""
    body = await embed(backend, input="water " * 300)
    assert body["usage"]["prompt_tokens"] >= 300
    (opened,) = open_batch(backend, [request(EndpointKind.EMBEDDINGS, input="water " * 2500)])
    with pytest.raises(ContextLengthExceeded):
        await answer(opened)
    await freed(opened, 5.0)


async def test_token_ids_are_inputs_too(backend: LlamaCppBackend) -> None:
    (opened,) = open_batch(backend, [request(EndpointKind.TOKENIZE, prompt="Hello world")])
    ids = (await answer(opened))["tokens"]
    by_ids = (await embed(backend, input=ids))["data"][0]["embedding"]
    by_text = (await embed(backend, input="Hello world"))["data"][0]["embedding"]
    assert cosine(by_ids, by_text) > 0.999
    (opened,) = open_batch(backend, [request(EndpointKind.EMBEDDINGS, input=[10**9])])
    with pytest.raises(InvalidRequest):
        await answer(opened)


async def test_beside_a_chat(backend: LlamaCppBackend) -> None:
    """One engine does both; the chat's text is what it is alone."""
    chat = make_request(MODEL, max_tokens=20, ignore_eos=True)
    (alone,) = open_batch(backend, [chat])
    text = (await answer(alone))["choices"][0]["message"]["content"]
    beside, embedding = open_batch(
        backend,
        [
            make_request(MODEL, max_tokens=20, ignore_eos=True),
            request(EndpointKind.EMBEDDINGS, input=["a b c " * 30] * 3),
        ],
    )
    both = await asyncio.gather(answer(beside), answer(embedding))
    assert both[0]["choices"][0]["message"]["content"] == text
    assert len(both[1]["data"]) == 3


async def test_cancelled_the_slot_is_held_until_the_engine_is_done(backend: LlamaCppBackend) -> None:
    """The engine cannot stop within one input; after it nothing more is asked."""
    (opened,) = open_batch(backend, [request(EndpointKind.EMBEDDINGS, input=["river " * 60] * 50)])
    pull = asyncio.ensure_future(_pull(opened))
    await asyncio.sleep(0)
    opened.cancel()
    assert opened.lease.held
    pull.cancel()
    await freed(opened, WITHIN_S)
    assert len(opened.freed) == 1
    assert (await embed(backend, input="Hello"))["usage"]["prompt_tokens"] > 0


async def _pull(opened: Opened) -> None:
    await opened.stream.__anext__()


async def test_closing_ends_it(backend: LlamaCppBackend) -> None:
    (opened,) = open_batch(backend, [request(EndpointKind.EMBEDDINGS, input=["river " * 60] * 50)])
    pull = asyncio.ensure_future(_pull(opened))
    await asyncio.sleep(0)
    await backend.aclose()
    await freed(opened, 5.0)
    with pytest.raises(Exception, match="engine"):
        await pull


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    settings = {**MOCK, "engines.backend": "llama.cpp", "engines.llama_cpp.n_threads": "1"}
    async with serve(settings, engines__native_backend_concurrency="2") as it:
        yield it


async def test_over_http(served: Served) -> None:
    got = await ask(served.port, post({"model": MODEL, "input": ["a", "b"]}, "/v1/embeddings"))
    assert got.status == 200
    assert len(got.json()["data"]) == 2
    refused = await ask(served.port, post({"model": MODEL, "input": "a", "dimensions": 8}, "/v1/embeddings"))
    assert (refused.status, refused.error["param"]) == (400, "dimensions")
    tokens = await ask(served.port, post({"model": MODEL, "prompt": "Hello"}, "/tokenize"))
    assert tokens.json() == {"count": 1, "max_model_len": 2048, "tokens": [19556], "token_strs": None}
    hello = [{"role": "user", "content": "Hello"}]
    asked = {"model": MODEL, "messages": hello, "return_token_strs": True}
    chat = (await ask(served.port, post(asked, "/tokenize"))).json()
    assert "".join(chat["token_strs"]).endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    body = {"model": MODEL, "messages": hello, "max_tokens": 1}
    usage = (await ask(served.port, post(body))).json()["usage"]
    assert usage["prompt_tokens"] == chat["count"], "what a chat of the same messages is charged"
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    image = await ask(served.port, post({"model": MODEL, "messages": picture}, "/tokenize"))
    assert (image.status, image.error["param"]) == (400, "messages[0].content[0]")
    rerank = {"model": MODEL, "query": "q", "documents": ["a"]}
    missing = await ask(served.port, post(rerank, "/v1/rerank"))
    assert (missing.status, missing.error["code"]) == (404, "unsupported_endpoint")
    await served.at_rest()
