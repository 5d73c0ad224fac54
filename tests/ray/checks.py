"""What holds of any real engine in a Ray replica."""

from __future__ import annotations

from tests.ray.conftest import Bed
from tests.support.http import ask, chat_body, connected, post


async def check_counts(bed: Bed, model: str) -> None:
    """Usage is exact, and the same streamed and whole."""
    body = chat_body(model, max_tokens=8, temperature=0, ignore_eos=True)
    plain = (await ask(bed.port, post(body))).json()
    assert plain["usage"]["completion_tokens"] == 8
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with connected(bed.port) as connection:
        await connection.send(post(streamed))
        _, stream = await connection.streamed()
    assert stream.done
    assert stream.text == plain["choices"][0]["message"]["content"]
    assert stream.chunks[-1]["usage"]["completion_tokens"] == 8
    assert stream.chunks[-1]["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
