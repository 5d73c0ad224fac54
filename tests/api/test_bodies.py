"""Request bodies that are too large, too slow, cut off or wrongly announced."""

from __future__ import annotations

import asyncio
import resource

import openai
import orjson
import pytest

from tests.support.http import CHAT, Connection, chat_body, chunk, connected, post, request_head
from tests.support.server import Served, serve

MIB = 1024 * 1024
LIMIT = str(MIB)
JSON = {"host": "test", "content-type": "application/json"}


def announced(num_bytes: int) -> bytes:
    return request_head("POST", CHAT, {**JSON, "content-length": str(num_bytes)})


CHUNKED = request_head("POST", CHAT, {**JSON, "transfer-encoding": "chunked"})


def big(num_bytes: int, model: str = "mock") -> bytes:
    """A good request of about that size; far too long for the mock's context."""
    return orjson.dumps(chat_body(model, messages=[{"role": "user", "content": "x" * num_bytes}]))


async def assert_too_large(server: Served, connection: Connection) -> None:
    reply = await connection.reply()
    assert reply.status == 413
    assert reply.error["code"] == "request_too_large"
    assert str(MIB) in reply.error["message"]
    assert reply.headers["connection"] == "close"
    assert server.recorder.refusals[-1] == ("chat", 413, "request_too_large")
    assert server.runtime.num_active == 0


async def test_f13_a_an_announced_size_is_refused_at_once() -> None:
    async with serve(server__max_body_bytes=LIMIT) as server, connected(server.port) as connection:
        await connection.send(announced(50 * MIB))
        await assert_too_large(server, connection)  # not a byte of it was sent


async def test_who_waits_to_be_asked_is_not_asked() -> None:
    """`expect: 100-continue`, as curl sends it: the body never travels."""
    async with serve(server__max_body_bytes=LIMIT) as server, connected(server.port) as connection:
        headers = {**JSON, "content-length": str(50 * MIB), "expect": "100-continue"}
        await connection.send(request_head("POST", CHAT, headers))
        await assert_too_large(server, connection)
        await connection.send(request_head("POST", CHAT, headers))


async def test_f13_b_chunks_are_counted() -> None:
    async with serve(server__max_body_bytes=LIMIT) as server, connected(server.port) as connection:
        await connection.send(CHUNKED)
        for _ in range(17):  # one more than fits
            await connection.send(chunk(b" " * 65536))
        await assert_too_large(server, connection)


async def test_f13_b_a_large_chunked_body_is_not_kept_in_memory() -> None:
    async with serve(server__max_body_bytes=LIMIT) as server, connected(server.port) as connection:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await connection.send(CHUNKED)
        piece = chunk(b" " * 65536)

        async def pour() -> None:
            try:
                for _ in range(50 * MIB // 65536):
                    await connection.send(piece)
            except ConnectionError:
                pass

        pouring = asyncio.ensure_future(pour())
        await assert_too_large(server, connection)
        pouring.cancel()
        await asyncio.wait([pouring])
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024


async def test_who_sends_everything_first_still_reads_why() -> None:
    """Closing on unread bytes would reset the connection under the answer."""
    async with serve(server__max_body_bytes=LIMIT) as server, connected(server.port) as connection:
        body = big(4 * MIB)
        await connection.send(announced(len(body)) + body)
        await assert_too_large(server, connection)
        assert await connection.at_end()


async def test_the_sdk_reads_it_as_a_413() -> None:
    async with (
        serve(server__max_body_bytes=LIMIT) as server,
        openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="x", max_retries=0) as client,
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(
                model="mock", messages=[{"role": "user", "content": "x" * (4 * MIB)}]
            )
        assert caught.value.status_code == 413
        assert caught.value.code == "request_too_large"


async def test_f13_e_below_the_limit_size_alone_is_no_fault() -> None:
    async with serve(server__max_body_bytes=LIMIT) as server, connected(server.port) as connection:
        await connection.send(post(big(900 * 1024)))  # parsed off the loop
        assert (await connection.reply()).error["code"] == "context_length_exceeded"
        await connection.send(CHUNKED)
        body = orjson.dumps(chat_body("mock", max_tokens=1))
        for start in range(0, len(body), 7):
            await connection.send(chunk(body[start : start + 7]))
        await connection.send(chunk(b""))
        assert (await connection.reply()).status == 200


async def test_f13_c_only_the_announced_length_is_the_body() -> None:
    """What comes after it would be the next request; this is none, so the connection is over."""
    async with serve() as server, connected(server.port) as connection:
        await connection.send(announced(10) + b'{"model": "mock",' + b" " * 1000)
        assert (await connection.head()).status == 400
        async with connected(server.port) as other:
            await other.send(post(chat_body("mock", max_tokens=1)))
            assert (await other.reply()).status == 200
        await server.at_rest()
        assert len(server.recorder.accepted_ids) == 1


async def test_f13_d_a_body_that_does_not_come_is_given_up() -> None:
    async with serve(limits__body_timeout_s="0.2") as server, connected(server.port) as connection:
        await connection.send(announced(1000) + b'{"model":')
        reply = await connection.reply()
        assert (reply.status, reply.error["code"]) == (408, "body_timeout")
        assert reply.headers["connection"] == "close"
        assert server.recorder.refusals == [("chat", 408, "body_timeout")]


async def test_f13_d_slow_senders_hold_nothing_that_others_need() -> None:
    async with serve(limits__body_timeout_s="0.5") as server:
        slow = [await Connection.open(server.port) for _ in range(50)]
        for connection in slow:
            await connection.send(announced(1000) + b"{")
        async with connected(server.port) as connection:
            await connection.send(post(chat_body("mock", max_tokens=1)))
            assert (await connection.reply()).status == 200
        assert (server.runtime.num_active, server.num_taken_slots) == (0, 0)
        for connection in slow:
            assert (await connection.reply()).status == 408
            connection.close()
        await server.no_connections()


async def test_f28_b_half_a_body_and_gone() -> None:
    async with serve() as server:
        for number in range(300):
            connection = await Connection.open(server.port)
            await connection.send(announced(1000) + b'{"model":"mock",')
            if number % 3 == 0:
                connection.close()
            elif number % 3 == 1:
                connection.reset()
            else:
                connection.half_close()
                assert await connection.at_end()
                connection.close()
        await server.no_connections()
        await server.at_rest()
        assert server.recorder.accepted_ids == []
        assert set(server.recorder.refusals) <= {("chat", 499, "client_gone")}


async def test_refused_before_the_body_is_read() -> None:
    """A caller without a key, or with the wrong media type, need not be listened to."""
    async with serve(server__api_keys="sk-secret-one") as server, connected(server.port) as connection:
        await connection.send(announced(5 * MIB))
        assert (await connection.reply()).status == 401
    async with serve() as server, connected(server.port) as connection:
        await connection.send(
            request_head(
                "POST", CHAT, {"host": "x", "content-type": "text/plain", "content-length": "5000000"}
            )
        )
        assert (await connection.reply()).status == 415


async def test_f55_g_big_bodies_do_not_stop_tokens() -> None:
    """While huge prompts are parsed, a running stream goes on."""
    async with (
        serve(engines__mock__decode_latency_ms="2", engines__mock__context_tokens="100000000") as server,
        connected(server.port) as stream_connection,
    ):
        body = chat_body("mock", stream=True, max_tokens=400, ignore_eos=True)
        await stream_connection.send(post(body))
        head = await stream_connection.head()
        assert head.status == 200
        gaps = []

        async def read() -> None:
            loop = asyncio.get_running_loop()
            last = loop.time()
            while await stream_connection.chunk():
                now = loop.time()
                gaps.append(now - last)
                last = now

        reading = asyncio.ensure_future(read())
        for _ in range(4):
            async with connected(server.port) as connection:
                await connection.send(post(big(6 * MIB, "no-such-model")))
                assert (await connection.reply()).status == 404
        await reading
        assert max(gaps) < 0.25
