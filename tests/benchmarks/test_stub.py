"""The frozen files: that they are what they were, and that the stub does what it says."""

from __future__ import annotations

import asyncio
import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import benchmarks.overhead
from tests.benchmarks.stubs import stubbed

FROZEN = {
    "stub_upstream.py": "5e7cd2b059471ce543fc2555222063358f0c683aa8959f871cb57a7292799a2c",
    "stub_events.py": "61bf605809a5326f920978827655fb16f817a87e67956453a3c1dc2d83a35b0c",
    "baseline_proxy.py": "cb47963903022509e05e80f5f2eb9f42ae042e6aec6b3366cfc584c5ca0e56ca",
}


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_files_have_not_changed(name: str) -> None:
    content = (Path(benchmarks.overhead.__file__).parent / name).read_bytes()
    told = "results of different commits would no longer compare: write another file with another name"
    assert hashlib.sha256(content).hexdigest() == FROZEN[name], told


async def exchange(port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """Status and body, chunks joined; the connection is closed after it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = b"" if body is None else json.dumps(body).encode()
    writer.write(f"{method} {path} HTTP/1.1\r\ncontent-length: {len(payload)}\r\n\r\n".encode() + payload)
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(maxsplit=2)[1])
    if b"chunked" in head:
        parts = []
        while size := int((await reader.readline()).strip(), 16):
            parts.append(await reader.readexactly(size))
            assert await reader.readexactly(2) == b"\r\n"
        content = b"".join(parts)
    else:
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        content = await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()
    return status, content


async def streamed(port: int, num_tokens: int, **members: Any) -> list[dict[str, Any]]:
    """The events of a stream; the last one is checked to be the end."""
    request = {"model": "m", "stream": True, "max_tokens": num_tokens, "messages": [], **members}
    status, body = await exchange(port, "POST", "/v1/chat/completions", request)
    assert status == 200
    *events, done = [part.removeprefix(b"data: ") for part in body.removesuffix(b"\n\n").split(b"\n\n")]
    assert done == b"[DONE]"
    return [json.loads(event) for event in events]


def stamps(events: list[dict[str, Any]]) -> list[float]:
    contents = [event["choices"][0]["delta"].get("content") for event in events if event["choices"]]
    return [int(content) / 1e6 for content in contents if content]


@pytest.mark.parametrize("num_tokens", [1, 2, 5])
async def test_a_stream_has_role_tokens_and_finish(num_tokens: int) -> None:
    async with stubbed(gap_s=0.001) as watched:
        stub, port = watched.stub, watched.port
        events = await streamed(port, num_tokens)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(stamps(events)) == num_tokens
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["length"]
    assert {event["model"] for event in events} == {"m"}
    assert len({event["id"] for event in events}) == 1
    assert all("usage" not in event for event in events)
    assert (stub.num_requests, stub.num_tokens, len(stub.streams)) == (1, num_tokens, 0)


async def test_usage_comes_when_asked() -> None:
    async with stubbed(gap_s=0.001) as watched:
        port = watched.port
        events = await streamed(port, 4, stream_options={"include_usage": True})
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 4


async def test_an_event_has_the_size_it_claims() -> None:
    async with stubbed(gap_s=0.001) as watched:
        port = watched.port
        request = {"model": "stub", "stream": True, "max_tokens": 3}
        _, body = await exchange(port, "POST", "/v1/chat/completions", request)
    token = body.split(b"\n\n")[1]
    assert 220 <= len(token) <= 260


async def test_tokens_are_never_early_and_streams_keep_their_own_pace() -> None:
    async with stubbed(gap_s=0.02) as watched:
        port = watched.port
        begun_at = asyncio.get_running_loop().time()
        first, second = await asyncio.gather(streamed(port, 4), streamed(port, 4))
    for events in (first, second):
        assert all(at >= begun_at + 0.02 * number - 1e-5 for number, at in enumerate(stamps(events), start=1))


async def test_in_steps_all_streams_get_their_tokens_together() -> None:
    async with stubbed(gap_s=0.1, pace="steps") as watched:
        port = watched.port

        async def late() -> list[dict[str, Any]]:
            await asyncio.sleep(0.03)
            return await streamed(port, 3)

        first, second = await asyncio.gather(streamed(port, 4), late())
    together = [min(abs(at - other) for other in stamps(first)) for at in stamps(second)]
    assert max(together) < 0.02
    assert all(later - earlier > 0.05 for earlier, later in pairwise(stamps(first)))


async def test_without_a_gap_it_writes_as_fast_as_the_reader_reads() -> None:
    async with stubbed(gap_s=0.0) as watched:
        stub, port = watched.stub, watched.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        body = json.dumps({"stream": True, "max_tokens": 1_000_000}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await reader.readuntil(b"\r\n\r\n")
        await watched.until(lambda: watched.num_paused == 1)
        assert stub.num_tokens < 1_000_000
        assert len(await streamed(port, 50)) == 51
        writer.close()
        await writer.wait_closed()
        await watched.until(lambda: watched.num_lost == 2)
        assert not stub.streams


async def test_plain_replies_and_other_pages() -> None:
    async with stubbed() as watched:
        port = watched.port
        status, body = await exchange(port, "POST", "/v1/chat/completions", {"model": "m", "messages": []})
        assert status == 200
        reply = json.loads(body)
        assert reply["object"] == "chat.completion"
        assert reply["usage"]["completion_tokens"] == 64
        status, body = await exchange(port, "GET", "/v1/models")
        assert [model["id"] for model in json.loads(body)["data"]] == ["stub"]
        assert (await exchange(port, "GET", "/health"))[0] == 200
        assert (await exchange(port, "GET", "/nowhere"))[0] == 404


async def test_the_pace_is_set_for_later_requests_and_counters_are_told() -> None:
    async with stubbed() as watched:
        stub, port = watched.stub, watched.port
        _, body = await exchange(port, "POST", "/stub", {"gap_s": 0.5, "pace": "steps"})
        assert (stub.gap_s, stub.pace) == (0.5, "steps")
        assert json.loads(body)["num_requests"] == 0
        await exchange(port, "POST", "/v1/chat/completions", {"messages": []})
        assert json.loads((await exchange(port, "GET", "/stub"))[1])["num_requests"] == 1
