"""Clients that leave, in every way and every phase; and those that stay but do not read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import openai
import pytest

from llm_runtime.core.outcome import Outcome
from tests.support.http import CHAT, Connection, chat_body, connected, get, post
from tests.support.scripted import MODEL, ScriptedBackend, ScriptedStream
from tests.support.server import MOCK, Served, serve

WAYS = {
    "FIN": Connection.close,
    "RST": Connection.reset,
    "half close": Connection.half_close,
}
LEFT = [(Outcome.CANCELLED, "client_gone")]


def named(name: str, **fields: Any) -> bytes:
    return post(chat_body(MODEL, **fields), headers={"x-request-id": name})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("phase", ["queued", "queued plain", "before the first token", "mid-stream", "plain"])
async def test_f25_a_b_c_d_leaving_ends_the_request_and_frees_the_slot(way: str, phase: str) -> None:
    backend = ScriptedBackend(slots=1)
    async with serve(backend=backend) as server, connected(server.port) as other:
        connection = await Connection.open(server.port)
        queued = phase.startswith("queued")
        if queued:
            await other.send(named("busy"))
            await backend.got(0)
        await connection.send(named("leaving", stream="plain" not in phase))
        await server.accepted(1 + queued)
        if phase == "mid-stream":
            engine = await backend.got(0)
            engine.say("a", "b")
            await connection.head()
            await connection.chunk()
        WAYS[way](connection)
        await server.recorder.ended("leaving")
        assert server.recorder.ends("leaving") == LEFT
        if queued:
            assert backend.ids == ["busy"]
            assert (await get(server.port, "/metrics")).json()["queue_size"] == 0
            backend.streams[0].end()
            assert (await other.reply()).status == 200
        else:
            assert backend.streams[0].cancelled
            await other.send(named("next"))
            (await backend.got(1)).end()
            assert (await other.reply()).status == 200
        connection.close()
        await server.at_rest()
        await server.settled(2)
        metrics = (await get(server.port, "/metrics")).json()
        assert (metrics["active_requests"], metrics["failed_count"], metrics["rejected_count"]) == (0, 0, 0)


async def test_f25_the_waiting_one_starts_when_the_abandoned_one_stops() -> None:
    """Not when it would have ended by itself."""
    timing = {"engines.mock.prefill_latency_ms": "50", "engines.mock.decode_latency_ms": "50"}
    async with serve({**MOCK, **timing}, scheduling__max_batch_size="1") as server:
        connection = await Connection.open(server.port)
        await connection.send(post(chat_body("mock", max_tokens=2000, ignore_eos=True)))
        await server.accepted(1)
        async with connected(server.port) as other:
            await other.send(post(chat_body("mock", max_tokens=1)))
            await server.accepted(2)
            loop = asyncio.get_running_loop()
            left_at = loop.time()
            connection.reset()
            assert (await other.reply()).status == 200
            assert loop.time() - left_at < 1.0  # the abandoned one needed 100 s
        await server.at_rest()


async def test_f25_f_an_impatient_sdk_never_runs_twice_at_once() -> None:
    backend = ScriptedBackend(slots=8)
    most = 0

    def count(_: ScriptedStream) -> None:
        nonlocal most
        most = max(most, sum(stream.lease.held for stream in backend.streams))

    backend.on_open = count
    async with (
        serve(backend=backend) as server,
        openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="x", timeout=0.2) as client,
    ):
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
        await server.at_rest()
        assert len(backend.streams) == 3
        assert most == 1


async def test_f28_a_reset_at_once_300_times() -> None:
    async with serve({**MOCK, "engines.mock.decode_latency_ms": "5"}) as server:
        chance = random.Random(7)
        for number in range(300):
            connection = await Connection.open(server.port)
            await connection.send(post(chat_body("mock", stream=number % 4 != 0, max_tokens=500)))
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            connection.reset()
        await server.no_connections()
        await server.at_rest()
        async with connected(server.port) as connection:
            await connection.send(post(chat_body("mock", max_tokens=1)))
            assert (await connection.reply()).status == 200
        metrics = (await get(server.port, "/metrics")).json()
        assert (metrics["active_requests"], metrics["queue_size"]) == (0, 0)
        assert metrics["failed_count"] == 0


async def test_f25_leaving_is_logged_as_leaving(capfd: pytest.CaptureFixture[str]) -> None:
    backend = ScriptedBackend(slots=1)
    async with serve(backend=backend, telemetry__log_level="info") as server:
        for stream in (False, True):
            connection = await Connection.open(server.port)
            await connection.send(post(chat_body(MODEL, stream=stream)))
            await server.accepted(1 + stream)
            connection.reset()
            await server.settled(1 + stream)
        await server.at_rest()
    out, err = capfd.readouterr()
    lines = [line for line in (out + err).splitlines() if "request.settled" in line]
    assert len(lines) == 2
    assert all('"outcome":"cancelled"' in line and '"reason":"client_gone"' in line for line in lines)
    assert '"level":"error"' not in out + err


# ---- slow readers


async def flood(backend: ScriptedBackend, connection: Connection, name: str) -> ScriptedStream:
    """A stream with far more to say than fits anywhere; nobody reads it."""
    number = len(backend.streams)
    await connection.send(named(name, stream=True))
    engine = await backend.got(number)
    for _ in range(4000):
        engine.say("x" * 2000)
    return engine


async def test_f28_e_f25_e_who_does_not_read_is_cut_and_nothing_piles_up() -> None:
    backend = ScriptedBackend(slots=2)
    async with (
        serve(backend=backend, limits__write_stall_timeout_s="0.3") as server,
        connected(server.port, receive_buffer_bytes=4096) as slow,
    ):
        engine = await flood(backend, slow, "slow")
        record = await server.recorder.ended("slow")
        assert (record.outcome, record.reason) == (Outcome.CANCELLED, "slow_client")
        assert engine.cancelled
        # What lay between the engine and the client: our buffer and the kernel's, not 8 MB.
        assert engine.num_pulled * 2000 < 1_500_000
        # Cut, not closed politely: there is no end of the reply to be had.
        with pytest.raises((EOFError, ConnectionError)):
            await slow.until(b"0\r\n\r\n")
        await server.at_rest()
        assert server.num_connections == 0


async def test_it_is_cut_behind_cors_as_well() -> None:
    """A middleware that wraps `send` must not hide the connection from us."""
    backend = ScriptedBackend()
    async with (
        serve(
            backend=backend,
            limits__write_stall_timeout_s="0.3",
            server__cors_allow_origins="http://ui.example",
        ) as server,
        connected(server.port, receive_buffer_bytes=4096) as slow,
    ):
        request = named("slow", stream=True).replace(
            b"host: test", b"host: test\r\norigin: http://ui.example"
        )
        await slow.send(request)
        engine = await backend.got(0)
        for _ in range(4000):
            engine.say("x" * 2000)
        assert (await server.recorder.ended("slow")).reason == "slow_client"
        await server.no_connections()


async def test_f28_d_slow_readers_do_not_slow_others() -> None:
    backend = ScriptedBackend(slots=21)
    async with serve(backend=backend, limits__write_stall_timeout_s="30") as server:
        slow = [await Connection.open(server.port, receive_buffer_bytes=4096) for _ in range(20)]
        for number, connection in enumerate(slow):
            await flood(backend, connection, f"slow{number}")
        async with connected(server.port) as connection:
            await connection.send(named("quick", stream=True))
            engine = await backend.got(20)
            loop = asyncio.get_running_loop()
            await connection_ready(engine, connection)
            for number in range(50):
                said_at = loop.time()
                engine.say(f"{number}")
                await connection.chunk()
                assert loop.time() - said_at < 0.5
            engine.end()
        for connection in slow:
            connection.reset()
        await server.no_connections()
        await server.at_rest()
        assert all(engine.num_pulled * 2000 < 1_500_000 for engine in backend.streams[:20])


async def connection_ready(engine: ScriptedStream, connection: Connection) -> None:
    engine.role()
    await connection.head()
    await connection.chunk()


async def test_f28_d_a_reader_that_is_only_slow_gets_everything() -> None:
    backend = ScriptedBackend()
    async with (
        serve(backend=backend, limits__write_stall_timeout_s="1") as server,
        connected(server.port, receive_buffer_bytes=65536) as connection,
    ):
        await connection.send(named("slow", stream=True))
        engine = await backend.got(0)
        for _ in range(1000):
            engine.say("x" * 2000)
        engine.end()
        await connection.head()
        total = 0
        while piece := await connection.chunk():
            total += piece.count(b"x" * 2000)
            if total % 100 == 0:
                await asyncio.sleep(0.02)
        assert total == 1000
        assert server.recorder.ends("slow") == [(Outcome.COMPLETED, "stop")]


async def test_a_plain_reply_that_nobody_reads_is_cut_too() -> None:
    """Replies pile up on a connection whose client sends on and never reads."""

    def big(engine: ScriptedStream) -> None:
        engine.say("x" * 600_000)
        engine.end()

    backend = ScriptedBackend(on_open=big)
    async with (
        serve(backend=backend, limits__write_stall_timeout_s="0.3") as server,
        connected(server.port, receive_buffer_bytes=4096) as slow,
    ):
        for number in range(3):
            await slow.send(named(f"r{number}"))
        await server.recorder.until(
            lambda: any(r.reason == "slow_client" for r in server.recorder.records), "a cut"
        )
        await server.no_connections()
        await server.at_rest()


# ---- all at once


async def test_f25_two_hundred_clients_that_do_as_they_like() -> None:
    """Random requests, random ways and moments of leaving; afterwards nothing is left of any of them."""
    chance = random.Random(20261129)
    timing = {"engines.mock.prefill_latency_ms": "3", "engines.mock.decode_latency_ms": "1"}
    async with serve(
        {**MOCK, **timing}, scheduling__policy="priority", admission__max_queue_size="60"
    ) as server:
        gate = asyncio.Semaphore(80)

        async def client() -> None:
            async with gate:
                await one_client(server, chance)

        await asyncio.gather(*(client() for _ in range(200)))
        await server.no_connections()
        await server.at_rest()
        recorder = server.recorder
        assert {record.outcome for record in recorder.records} >= {Outcome.COMPLETED, Outcome.CANCELLED}
        assert not any(record.outcome is Outcome.FAILED for record in recorder.records)
        assert len(recorder.records) + len(recorder.rejections) + len(recorder.refusals) <= 200
        metrics = (await get(server.port, "/metrics")).json()
        assert (metrics["active_requests"], metrics["queue_size"]) == (0, 0)
        load = (await get(server.port, "/load")).json()["pools"][0]
        assert (load["num_free_slots"], load["num_running"], load["num_waiting"]) == (8, 0, 0)
        assert server.runtime.pools[0].dispatcher.num_waiting_tokens == 0


async def one_client(server: Served, chance: random.Random) -> None:
    connection = await Connection.open(server.port)
    body = chat_body(
        "mock",
        stream=chance.random() < 0.6,
        max_tokens=chance.choice([1, 5, 40, 300]),
        n=chance.choice([1, 1, 1, 2, 8]),
        priority=chance.randrange(10),
        stream_options=None,
    )
    request = post(body)
    deeds: list[Callable[[], Any]] = [connection.close, connection.reset, connection.half_close]
    leave = chance.choice(deeds)
    fate = chance.random()
    try:
        if fate < 0.1:
            await connection.send(request[: chance.randrange(1, len(request))])
            leave()
            return
        await connection.send(request)
        for _ in range(chance.randrange(200) if fate < 0.6 else 0):
            await asyncio.sleep(0)
        if fate < 0.35:
            leave()
            return
        head = await connection.head()
        assert head.status in (200, 503), head
        if fate < 0.6:
            leave()
            return
        if "content-length" in head.headers:
            await connection.exactly(int(head.headers["content-length"]))
        else:
            tail = b""
            while piece := await connection.chunk():
                tail = piece
            assert tail.endswith(b"data: [DONE]\n\n")
    finally:
        connection.close()


async def test_a_path_with_a_slash_is_watched_too() -> None:
    backend = ScriptedBackend()
    async with serve(backend=backend) as server:
        connection = await Connection.open(server.port)
        await connection.send(post(chat_body(MODEL), CHAT + "/", {"x-request-id": "one"}))
        await backend.got(0)
        connection.close()
        assert (await server.recorder.ended("one")).outcome is Outcome.CANCELLED
