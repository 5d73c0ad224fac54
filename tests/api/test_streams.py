"""Streams on the wire: headers, the commit point, comments, usage, and what an error becomes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_runtime.core.errors import (
    BackendCrashed,
    BackendError,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    LLMRuntimeError,
)
from llm_runtime.core.outcome import Outcome
from llm_runtime.engines.base import BackendState
from tests.support.http import COMPLETIONS, Stream, ask, chat_body, connected, get, post
from tests.support.scripted import MODEL, ScriptedBackend, answer
from tests.support.server import MOCK, serve


def streaming(**fields: Any) -> bytes:
    return post(chat_body(MODEL, stream=True, **fields), headers={"x-request-id": "one"})


async def test_f20_the_headers_of_a_stream() -> None:
    async with (
        serve(backend=ScriptedBackend(on_open=answer("a"))) as server,
        connected(server.port) as connection,
    ):
        await connection.send(post(chat_body(MODEL, stream=True), headers={"accept-encoding": "gzip, br"}))
        head, _ = await connection.streamed()
    assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert head.headers["cache-control"] == "no-cache, no-store"
    assert head.headers["x-accel-buffering"] == "no"
    assert "content-length" not in head.headers
    assert "content-encoding" not in head.headers
    assert head.headers["server-timing"].startswith("queue;dur=")
    assert 'replica;desc="scripted-0"' in head.headers["server-timing"]


async def test_f20_each_token_arrives_when_it_is_made() -> None:
    backend = ScriptedBackend()
    async with serve(backend=backend) as server, connected(server.port) as connection:
        await connection.send(streaming())
        engine = await backend.got(0)
        engine.role()
        assert (await connection.head()).status == 200  # with the engine's first event, not before
        stream = Stream()
        await connection.event(stream)
        for text in ("Hello", " wor", "ld"):
            engine.say(text)
            await connection.event(stream)
            assert stream.text.endswith(text)
        engine.end()
        async for _ in connection.events(stream):
            pass
    assert stream.text == "Hello world"
    assert stream.done
    assert len({(event["id"], event["created"], event["model"]) for event in stream.events}) == 1
    assert stream.chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert stream.chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_many_wake_ups_at_once_are_one_write() -> None:
    def speak(stream: Any) -> None:
        stream.say("a")
        stream.end()

    async with serve(backend=ScriptedBackend(on_open=speak)) as server, connected(server.port) as connection:
        await connection.send(streaming())
        await connection.head()
        stream = Stream()
        await connection.event(stream)
        assert stream.text == "a"
        await connection.event(stream)
        assert stream.done
        assert await connection.chunk() == b""


# ---- errors

REFUSALS = [
    (InvalidRequest("no such thing", param="tools"), 400),
    (ContextLengthExceeded("too long"), 400),
    (BackendError("broke"), 502),
    (BackendCrashed("died"), 502),
    (BackendUnavailable("loading", retry_after_s=2.5), 503),
    (ZeroDivisionError("secret"), 500),
]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("error", "status"), REFUSALS, ids=str)
async def test_f20_an_engines_refusal_keeps_its_status(error: Exception, status: int, stream: bool) -> None:
    backend = ScriptedBackend(on_open=lambda engine: engine.fail(error))
    async with serve(backend=backend) as server:
        reply = await ask(server.port, post(chat_body(MODEL, stream=stream)))
        assert reply.status == status
        assert "secret" not in reply.error["message"]
        if isinstance(error, LLMRuntimeError):
            assert (reply.error["code"], reply.error["param"]) == (error.reason, error.param)
        if status == 503:
            assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("3", "2500")
        await server.at_rest()
        assert server.recorder.records[0].outcome is Outcome.FAILED
        # What the engine refused for the request's sake is no refusal of ours.
        assert server.recorder.refusals == []


@pytest.mark.parametrize("error", [error for error, _ in REFUSALS], ids=str)
async def test_after_the_first_byte_an_error_is_an_event(error: Exception) -> None:
    def speak(engine: Any) -> None:
        engine.role()
        engine.say("half an ans")
        engine.fail(error)

    backend = ScriptedBackend(on_open=speak)
    async with serve(backend=backend) as server:
        async with connected(server.port) as connection:
            await connection.send(streaming())
            head, stream = await connection.streamed()
            assert head.status == 200
            assert stream.text == "half an ans"
            assert stream.error is not None
            assert set(stream.error) == {"message", "type", "param", "code"}
            assert not any(chunk["choices"][0]["finish_reason"] for chunk in stream.chunks)
            # The reply was whole as HTTP goes, so the connection serves on.
            backend.on_open = answer("fine")
            await connection.send(post(chat_body(MODEL)))
            assert (await connection.reply()).status == 200
        await server.at_rest()
        assert server.recorder.records[0].outcome is Outcome.FAILED
        assert len(backend.streams) == 2  # never tried again


async def test_a_limit_of_time_is_a_504_before_and_an_event_after_the_first_byte() -> None:
    backend = ScriptedBackend()
    async with serve(
        backend=backend, limits__request_timeout_s="0.15", limits__stream_idle_timeout_s="0.1"
    ) as server:
        for stream in (False, True):
            reply = await ask(server.port, post(chat_body(MODEL, stream=stream)))
            assert (reply.status, reply.error["type"]) == (504, "timeout_error")
            assert reply.headers["x-should-retry"] == "false"
        async with connected(server.port) as connection:
            await connection.send(streaming())
            (await backend.got(2)).say("a")
            _, stream_ = await connection.streamed()
            assert stream_.error is not None
            assert stream_.error["code"] == "deadline_exceeded"
        await server.at_rest()
        assert all(engine.cancelled for engine in backend.streams)
        assert {record.outcome for record in server.recorder.records} == {Outcome.TIMED_OUT}


@pytest.mark.parametrize(
    ("stream", "keep_alive", "status"), [(False, "10", 504), (True, "10", 504), (True, "0.05", 200)]
)
async def test_a_clients_own_patience(stream: bool, keep_alive: str, status: int) -> None:
    """As the SDK announces it. With comments in time, a stream's client has its first byte."""
    backend = ScriptedBackend()
    async with serve(backend=backend, limits__keep_alive_interval_s=keep_alive) as server:
        async with connected(server.port) as connection:
            headers = {"x-stainless-read-timeout": "0.2"}
            await connection.send(post(chat_body(MODEL, stream=stream), headers=headers))
            head = await connection.head()
            assert head.status == status
            if status == 200:
                await asyncio.sleep(0.3)
                (await backend.got(0)).end()
                taken = Stream()
                async for _ in connection.events(taken):
                    pass
                assert taken.done
                assert taken.num_comments >= 2
        await server.at_rest()


@pytest.mark.parametrize("hint", ["600", "NaN", "inf", "-1", "0", "soon", "1e9999"])
async def test_a_hint_that_is_none_changes_nothing(hint: str) -> None:
    async with serve(backend=ScriptedBackend(on_open=answer("a"))) as server:
        for stream in (False, True):
            request = post(chat_body(MODEL, stream=stream), headers={"x-stainless-read-timeout": hint})
            async with connected(server.port) as connection:
                await connection.send(request)
                assert (await connection.head()).status == 200


# ---- comments


async def test_f20_silence_is_filled_with_comments() -> None:
    """In the queue, in prefill and between tokens; they are no tokens and reset no limit."""
    backend = ScriptedBackend(slots=1)
    async with (
        serve(backend=backend, limits__keep_alive_interval_s="0.05") as server,
        connected(server.port) as busy,
        connected(server.port) as connection,
    ):
        await busy.send(post(chat_body(MODEL)))
        engine = await backend.got(0)
        await connection.send(streaming(stream_options={"include_usage": True}))
        stream = Stream()
        assert (await connection.head()).status == 200  # still in the queue
        while stream.num_comments < 2:
            await connection.event(stream)
        assert len(backend.streams) == 1
        engine.end()
        engine = await backend.got(1)
        for text in ("a", "b"):
            seen = stream.num_comments
            while stream.num_comments < seen + 2:
                await connection.event(stream)
            engine.say(text)
            await connection.event(stream)
        engine.end()
        async for _ in connection.events(stream):
            pass
        assert stream.text == "ab"
        assert stream.done
        assert stream.events[-1]["usage"]["completion_tokens"] == 2
        record = await server.recorder.ended("one")
        timeline = record.timeline
        assert timeline.ttft_s is not None
        assert timeline.ttft_s > 0.15
        assert (record.usage.completion_tokens, sum(record.itl_counts or ())) == (2, 1)


@pytest.mark.parametrize("error", [BackendError("broke"), InvalidRequest("no")])
async def test_a_refusal_after_comments_is_an_event(error: LLMRuntimeError) -> None:
    backend = ScriptedBackend()
    async with (
        serve(backend=backend, limits__keep_alive_interval_s="0.03") as server,
        connected(server.port) as connection,
    ):
        await connection.send(streaming())
        assert (await connection.head()).status == 200
        (await backend.got(0)).fail(error)
        stream = Stream()
        async for _ in connection.events(stream):
            pass
        assert stream.num_comments >= 1
        assert stream.error is not None
        assert stream.error["code"] == error.reason


async def test_f20_comments_can_be_switched_off() -> None:
    backend = ScriptedBackend()
    async with (
        serve(backend=backend, limits__keep_alive_interval_s="none") as server,
        connected(server.port) as connection,
    ):
        await connection.send(streaming())
        await asyncio.sleep(0.1)
        (await backend.got(0)).end()
        _, stream = await connection.streamed()
        assert stream.num_comments == 0


# ---- usage


@pytest.mark.parametrize("path", ["/v1/chat/completions", COMPLETIONS])
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (None, False),
        ({}, False),
        ({"include_usage": False}, False),
        ({"unknown": 1}, False),
        ({"include_usage": True}, True),
    ],
)
async def test_f17_a_b_c_d_f_usage_is_shown_to_who_asks(
    path: str, options: dict[str, Any] | None, asked: bool
) -> None:
    async with serve() as server, connected(server.port) as connection:
        for max_tokens in (1, 4):
            body: dict[str, Any] = {"model": "mock", "stream": True, "max_tokens": max_tokens}
            body |= {"stream_options": options, "ignore_eos": True}
            body |= (
                {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
            )
            await connection.send(post(body, path))
            _, stream = await connection.streamed()
            assert stream.done
            with_usage = [chunk for chunk in stream.chunks if chunk.get("usage")]
            if asked:
                assert with_usage == [stream.chunks[-1]]
                assert stream.chunks[-1]["choices"] == []
                usage = stream.chunks[-1]["usage"]
                assert usage["completion_tokens"] == max_tokens
                assert usage["total_tokens"] == usage["prompt_tokens"] + max_tokens
                assert all(chunk["usage"] is None for chunk in stream.chunks[:-1])
            else:
                assert all("usage" not in chunk and chunk["choices"] for chunk in stream.chunks)


async def test_f17_e_usage_options_without_a_stream_are_refused() -> None:
    async with serve() as server:
        reply = await ask(server.port, post(chat_body("mock", stream_options={"include_usage": True})))
        assert (reply.status, reply.error["param"]) == (400, "stream_options")


# ---- receipts


async def test_a_plain_reply_has_its_receipt() -> None:
    timing = {"engines.mock.prefill_latency_ms": "20", "engines.mock.decode_latency_ms": "5"}
    async with serve({**MOCK, **timing}) as server:
        reply = await ask(server.port, post(chat_body("mock", max_tokens=5, ignore_eos=True)))
        spans = dict(
            part.split(";dur=") for part in reply.headers["server-timing"].split(", ") if ";dur=" in part
        )
        assert set(spans) == {"queue", "prefill", "decode"}
        # The engine's clock does not wait for a late turn of the loop: what counts is the sum.
        assert float(spans["prefill"]) >= 25
        assert float(spans["prefill"]) + float(spans["decode"]) >= 20 + 5 * 5 - 1


async def test_a_stream_tells_where_its_time_went_to_who_asks() -> None:
    async with serve(backend=ScriptedBackend(on_open=answer("a", "b"))) as server:
        for asks in (False, True):
            headers = {"x-server-timing": "stream"} if asks else {}
            request = post(chat_body(MODEL, stream=True), headers=headers)
            async with connected(server.port) as connection:
                await connection.send(request)
                await connection.head()
                raw = b""
                while piece := await connection.chunk():
                    raw += piece
            _, done, rest = raw.partition(b"data: [DONE]\n\n")
            assert done
            if asks:
                assert rest.startswith(b": queue;dur=")
                assert b"decode;dur=" in rest
                assert rest.endswith(b"\n\n")
            else:
                assert rest == b""


async def test_an_error_has_its_receipt_where_there_is_one() -> None:
    backend = ScriptedBackend(on_open=lambda engine: engine.fail(BackendError("broke")))
    async with serve(backend=backend) as server:
        reply = await ask(server.port, post(chat_body(MODEL)))
        assert reply.headers["server-timing"].startswith("queue;dur=")
        reply = await ask(server.port, post(b"{"))
        assert "server-timing" not in reply.headers


async def test_a_used_name_gets_a_number_and_keeps_it_to_the_end() -> None:
    backend = ScriptedBackend(slots=3)
    async with serve(backend=backend) as server:
        async with (
            connected(server.port) as first,
            connected(server.port) as second,
            connected(server.port) as third,
        ):
            for number, connection in enumerate((first, second, third)):
                await connection.send(post(chat_body(MODEL), headers={"x-request-id": "same"}))
                await backend.got(number)
            assert backend.ids == ["same", "same-2", "same-3"]
            backend.streams[1].fail(BackendError("broke"))
            reply = await second.reply()
            assert (reply.status, reply.headers["x-request-id"]) == (502, "same-2")
            for number, connection in ((0, first), (2, third)):
                backend.streams[number].end()
                reply = await connection.reply()
                assert reply.headers["x-request-id"] == backend.ids[number]
                assert reply.json()["id"] == f"chatcmpl-{backend.ids[number]}"
        await server.at_rest()


async def test_not_ready_says_why_and_serves_as_soon_as_it_is() -> None:
    backend = ScriptedBackend(on_open=answer("a"))
    backend.starts_ready = False
    async with serve(backend=backend) as server:
        reply = await get(server.port, "/health/ready")
        assert (reply.status, reply.json()) == (503, {"status": "unavailable", "reason": "engine starting"})
        assert (await get(server.port, "/health/live")).json() == {"status": "alive"}
        async with connected(server.port) as connection:
            await connection.send(streaming())
            await server.accepted(1)
            backend.become(BackendState.READY)
            _, stream = await connection.streamed()
            assert stream.done
        assert (await get(server.port, "/health")).status == 200
        backend.become(BackendState.FAILED, "it crashed 5 times")
        reply = await get(server.port, "/health")
        assert "it crashed 5 times" in reply.json()["reason"]
        reply = await ask(server.port, post(chat_body(MODEL)))
        assert (reply.status, reply.error["code"]) == (503, "backend_unavailable")
        assert "it crashed 5 times" in reply.error["message"]
