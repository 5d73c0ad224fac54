"""Run by test_openai_sdk.py with one major of the official client: everything people do with it.

Usage: sdk_script.py BASE_URL MODEL. Prints the client's version; any surprise is an exception.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import openai
import pytest

MESSAGES: Any = [{"role": "user", "content": "Say hello."}]


def sync(url: str, model: str) -> None:
    client: Any = openai.OpenAI(base_url=url, api_key="unused", _strict_response_validation=True)
    assert [entry.id for entry in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model
    reply = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=6, seed=1)
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 6
    assert reply._request_id
    texts, usages, roles, finishes = [], [], 0, []
    for chunk in client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=6, stream=True, stream_options={"include_usage": True}
    ):
        if chunk.usage is not None:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            roles += choice.delta.role is not None
            texts.append(choice.delta.content or "")
            finishes += [choice.finish_reason] if choice.finish_reason else []
    assert "".join(texts)
    assert roles == 1
    assert finishes == ["length"]
    assert [usage.completion_tokens for usage in usages] == [6]
    legacy = client.completions.create(model=model, prompt=["One", "Two"], max_tokens=3, logprobs=None)
    assert sorted(choice.index for choice in legacy.choices) == [0, 1]
    with_parts = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "Sky "}, {"type": "text", "text": "colour?"}],
            },
        ],
        max_completion_tokens=3,
        logprobs=True,
        top_logprobs=2,
        n=2,
        stop=["zzz"],
    )
    assert len(with_parts.choices) == 2
    entries = with_parts.choices[0].logprobs.content
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as empty:
        client.chat.completions.create(model=model, messages=[])
    assert empty.value.param == "messages"


async def main_async(url: str, model: str) -> None:
    client: Any
    async with openai.AsyncOpenAI(base_url=url, api_key="unused") as client:
        stream = await client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=200, stream=True, extra_body={"ignore_eos": True}
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        await stream.close()
        replies = await asyncio.gather(
            *(client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=4) for _ in range(4))
        )
        assert all(reply.choices[0].message.content for reply in replies)


if __name__ == "__main__":
    sync(*sys.argv[1:3])
    asyncio.run(main_async(*sys.argv[1:3]))
    print(openai.__version__)
