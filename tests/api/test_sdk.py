"""The official client, unchanged and as strict as it can be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam

from llm_runtime.core.errors import BackendError
from tests.support.scripted import MODEL, ScriptedBackend, ScriptedStream, answer
from tests.support.server import MOCK, Served, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say a few words."}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Served]:
    async with serve() as served:
        yield served


@asynccontextmanager
async def client_of(server: Served, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    options = {"api_key": "x", "max_retries": 0, "_strict_response_validation": True, **options}
    async with openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", **options) as client:
        yield client


@contextmanager
def sync_client_of(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.base_url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


async def test_a_plain_chat(server: Served) -> None:
    async with client_of(server) as client:
        reply = await client.chat.completions.create(model="mock", messages=QUESTION, max_completion_tokens=5)
    assert reply.object == "chat.completion"
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 5
    assert reply._request_id
    assert reply._request_id in reply.id


async def test_a_streamed_chat_says_the_same(server: Served) -> None:
    async with client_of(server) as client:
        plain = await client.chat.completions.create(model="mock", messages=QUESTION, max_tokens=9)
        stream = await client.chat.completions.create(
            model="mock", messages=QUESTION, max_tokens=9, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.created for chunk in chunks} == {chunks[0].created}
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == plain.usage


async def test_several_choices(server: Served) -> None:
    async with client_of(server) as client:
        reply = await client.chat.completions.create(model="mock", messages=QUESTION, max_tokens=3, n=3)
        assert [choice.index for choice in reply.choices] == [0, 1, 2]
        stream = await client.chat.completions.create(
            model="mock", messages=QUESTION, max_tokens=3, n=3, stream=True
        )
        texts = {0: "", 1: "", 2: ""}
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert list(texts.values()) == [choice.message.content for choice in reply.choices]


async def test_the_streaming_helper() -> None:
    """The SDK's own accumulator, which is stricter than its types."""
    async with (
        serve(backend=ScriptedBackend(on_open=answer("Hello", " ", "world"))) as server,
        client_of(server) as client,
        client.chat.completions.stream(model=MODEL, messages=QUESTION) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert kinds.count("content.done") == 1
    assert final.choices[0].message.content == "Hello world"


async def test_legacy_completions(server: Served) -> None:
    async with client_of(server) as client:
        plain = await client.completions.create(model="mock", prompt=["one", "two"], max_tokens=4)
        assert plain.object == "text_completion"
        assert len(plain.choices) == 2
    # Strictly, the SDK knows no chunk without a finish reason, though the hosted API sends such.
    async with client_of(server, _strict_response_validation=False) as client:
        stream = await client.completions.create(model="mock", prompt="one", max_tokens=4, stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert text == plain.choices[0].text


async def test_models(server: Served) -> None:
    async with client_of(server) as client:
        assert [model.id async for model in client.models.list()] == ["mock"]
        assert (await client.models.retrieve("mock")).owned_by == "mock"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("no-such")


async def test_the_sync_client(server: Served) -> None:
    def work() -> tuple[str | None, str]:
        with sync_client_of(server) as client:
            plain = client.chat.completions.create(model="mock", messages=QUESTION, max_tokens=6)
            stream = client.chat.completions.create(
                model="mock", messages=QUESTION, max_tokens=6, stream=True
            )
            return plain.choices[0].message.content, "".join(
                chunk.choices[0].delta.content or "" for chunk in stream
            )

    plain, streamed = await asyncio.to_thread(work)
    assert plain == streamed


async def test_a_stream_that_is_left_ends_at_once(server: Served) -> None:
    async with client_of(server) as client:
        stream = await client.chat.completions.create(
            model="mock", messages=QUESTION, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await stream.close()
        await server.at_rest()


async def test_error_classes() -> None:
    settings = {
        **MOCK,
        "server.api_keys": "sk-good-key-1",
        "server.max_body_bytes": "4096",
        "admission.request_rate_limit_per_s": "0.001",
        "admission.request_rate_limit_burst": "2",
    }

    def speak(engine: ScriptedStream) -> None:
        if engine.request.stream:
            engine.say("half")
        engine.fail(BackendError("broke"))

    async with (
        serve(settings, backend=ScriptedBackend(on_open=speak)) as server,
        client_of(server, api_key="sk-good-key-1") as client,
        client_of(server, api_key="sk-bad-key-22") as stranger,
    ):
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as bad:
            await create(model=MODEL, messages=[])
        assert (bad.value.param, bad.value.code, bad.value.type) == (
            "messages", "empty_array", "invalid_request_error",
        )  # fmt: skip
        assert bad.value.request_id
        with pytest.raises(openai.NotFoundError) as missing:
            await create(model="no-such", messages=QUESTION)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.APIStatusError) as large:
            await create(model=MODEL, messages=[{"role": "user", "content": "x" * 5000}])
        assert large.value.status_code == 413
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(model=MODEL, messages=QUESTION)
        with pytest.raises(openai.InternalServerError) as broke:
            await create(model=MODEL, messages=QUESTION)
        assert (broke.value.status_code, broke.value.code) == (502, "backend_error")
        stream = await create(model=MODEL, messages=QUESTION, stream=True)
        texts = []
        with pytest.raises(openai.APIError) as cut:
            texts.extend([chunk.choices[0].delta.content async for chunk in stream])
        assert cut.value.code == "backend_error"
        with pytest.raises(openai.RateLimitError) as limited:
            await create(model=MODEL, messages=QUESTION)
        assert limited.value.code == "rate_limit_exceeded"
        assert limited.value.response.headers["retry-after"]
