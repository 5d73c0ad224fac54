"""Overload: refused early, cheaply and truthfully, with a wait that is right."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai
import orjson
import pytest

from llm_runtime.admission.policies import RateLimit
from tests.support.http import Connection, Reply, ask, chat_body, connected, get, post
from tests.support.scripted import MODEL, ScriptedBackend, answer
from tests.support.server import MOCK, Served, serve

QUIET = {**MOCK, "engines.mock.prefill_latency_ms": "0", "engines.mock.decode_latency_ms": "0"}


def limited(rate: str, burst: str) -> dict[str, str]:
    return {
        **QUIET,
        "admission.request_rate_limit_per_s": rate,
        "admission.request_rate_limit_burst": burst,
    }


def brief(model: str = "mock", **fields: Any) -> bytes:
    return post(chat_body(model, **{"max_tokens": 1, **fields}))


def waits(reply: Reply) -> tuple[int, int]:
    """What a refusal says: whole seconds, and milliseconds."""
    seconds, milliseconds = reply.headers["retry-after"], reply.headers["retry-after-ms"]
    assert seconds.isdecimal()
    assert milliseconds.isdecimal()
    assert int(seconds) == max(1, -(-int(milliseconds) // 1000))
    return int(seconds), int(milliseconds)


# ---- rate


async def test_f40_a_one_request_too_many_and_the_wait_is_exact() -> None:
    async with (
        serve(limited("4", "2")) as server,
        connected(server.port) as connection,
    ):
        for _ in range(2):
            await connection.send(brief())
            assert (await connection.reply()).status == 200
        await connection.send(brief())
        reply = await connection.reply()
        refused_at = time.monotonic()
        assert reply.status == 429
        assert (reply.error["type"], reply.error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert "4 per second" in reply.error["message"]
        seconds, milliseconds = waits(reply)
        assert seconds == 1
        assert 1 <= milliseconds <= 250
        assert (server.runtime.num_active, len(server.recorder.accepted_ids)) == (0, 2)
        # Who comes back when told to is served.
        await asyncio.sleep(max(0.0, milliseconds / 1000 - (time.monotonic() - refused_at)))
        await connection.send(brief())
        assert (await connection.reply()).status == 200


@pytest.mark.parametrize(("rate", "seconds"), [("0.2", 5), ("1000", 1)])
async def test_f40_c_long_and_very_short_waits(rate: str, seconds: int) -> None:
    async with serve(limited(rate, "1")) as server:
        replies = await asyncio.gather(*(ask(server.port, brief()) for _ in range(20)))
        refused = [reply for reply in replies if reply.status == 429]
        assert refused
        first = min(waits(reply) for reply in refused)
        assert first[0] == seconds
        assert first[1] >= 1


async def test_f41_d_concurrent_requests_do_not_share_a_token() -> None:
    """100 at once against a burst of 10 (the rate too small to matter): exactly 10."""
    async with serve(limited("0.001", "10")) as server:
        replies = await asyncio.gather(*(ask(server.port, brief()) for _ in range(100)))
        assert sorted(reply.status for reply in replies) == [200] * 10 + [429] * 90
        metrics = (await get(server.port, "/metrics")).json()
        assert metrics["rejections_by_reason"] == {"rate_limit_exceeded": 90}
        assert metrics["rejections_by_priority"] == {"5": 90}
        assert (metrics["rejected_count"], metrics["completed_count"]) == (90, 10)
        # Refused together, they are told to come back one after another.
        moments = sorted(waits(reply)[1] for reply in replies if reply.status == 429)
        assert len(set(moments)) > 1 or moments[0] >= 60_000


async def test_what_is_wrong_in_itself_takes_no_token() -> None:
    async with (
        serve(limited("0.001", "1")) as server,
        connected(server.port) as connection,
    ):
        for bad, status in (
            (post(b"{"), 400),
            (brief(temperature=5), 400),
            (brief("no-such-model"), 404),
            (brief(messages=[{"role": "user", "content": "x" * 40_000}]), 400),
            (brief(n=100), 400),
            (brief(tools=[{"type": "function", "function": {"name": "f"}}]), 400),
            (post(chat_body("mock"), headers={"content-type": "text/plain"}), 415),
        ):
            await connection.send(bad)
            assert (await connection.reply()).status == status
        for status in (200, 429):
            await connection.send(brief())
            assert (await connection.reply()).status == status


async def test_streams_are_refused_the_same_way() -> None:
    async with serve(limited("0.001", "1")) as server:
        assert (await ask(server.port, brief())).status == 200
        reply = await ask(server.port, brief(stream=True))
        assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")


async def test_f40_d_the_sdk_gets_through_by_its_own_retries() -> None:
    async with (
        serve(limited("2", "1")) as server,
        openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="x") as client,
    ):
        began_at = time.monotonic()
        replies = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model="mock", messages=[{"role": "user", "content": "hi"}], max_tokens=1
                )
                for _ in range(3)
            )
        )
        assert len(replies) == 3
        assert 0.9 < time.monotonic() - began_at < 3.0
        assert server.recorder.rejections


def test_f41_e_a_burst_or_rate_of_nothing_is_no_limit_but_a_mistake() -> None:
    for rate, burst in ((0, 1), (-1, 1), (float("inf"), 1), (1, 0)):
        with pytest.raises(ValueError, match="must be"):
            RateLimit(rate, burst)


# ---- queue


async def fill(server: Served, backend: ScriptedBackend, num_waiting: int) -> list[Connection]:
    """One request on the only slot, so many behind it."""
    connections = []
    for number in range(1 + num_waiting):
        connection = await Connection.open(server.port)
        await connection.send(brief(MODEL, stream=number % 2 == 0))
        await server.accepted(number + 1)
        connections.append(connection)
    assert server.runtime.pools[0].dispatcher.num_waiting == num_waiting
    assert len(backend.streams) == 1
    return connections


async def test_f40_b_a_full_queue_refuses_and_what_was_let_in_is_served() -> None:
    backend = ScriptedBackend(slots=1)
    async with serve(backend=backend, admission__max_queue_size="2") as server:
        connections = await fill(server, backend, 2)
        for stream in (False, True):
            reply = await ask(server.port, brief(MODEL, stream=stream, priority=3))
            assert reply.status == 503
            assert (reply.error["type"], reply.error["code"]) == ("service_unavailable_error", "queue_full")
            assert waits(reply)[0] >= 1
        assert [request.priority for request, _ in server.recorder.rejections] == [3, 3]
        assert server.runtime.pools[0].dispatcher.num_waiting == 2
        for number, connection in enumerate(connections):
            (await backend.got(number)).end()
            if number % 2 == 0:
                assert (await connection.streamed())[1].done
            else:
                assert (await connection.reply()).status == 200
            connection.close()
        await server.at_rest()
        metrics = (await get(server.port, "/metrics")).json()
        assert metrics["rejections_by_reason"] == {"queue_full": 2}
        assert metrics["rejections_by_priority"] == {"3": 2}
        assert metrics["queue_size"] == 0


async def test_nothing_waits_where_nothing_may_but_an_idle_engine_takes_work() -> None:
    backend = ScriptedBackend(slots=2, on_open=answer("a"))
    async with serve(backend=backend, admission__max_queue_size="0") as server:
        for _ in range(3):
            assert (await ask(server.port, brief(MODEL))).status == 200
        backend.on_open = None
        connections = [await Connection.open(server.port) for _ in range(2)]
        for connection in connections:
            await connection.send(brief(MODEL))
        await backend.got(4)
        assert (await ask(server.port, brief(MODEL))).error["code"] == "queue_full"
        for stream, connection in zip(backend.streams[3:], connections, strict=True):
            stream.end()
            assert (await connection.reply()).status == 200
            connection.close()


async def test_a_place_that_is_left_is_free_at_once() -> None:
    """Ten clients queue up and go: the eleventh is not told that the queue is full."""
    backend = ScriptedBackend(slots=1)
    async with serve(backend=backend, admission__max_queue_size="10") as server:
        connections = await fill(server, backend, 10)
        for number, connection in enumerate(connections[1:]):
            connection.reset() if number % 2 else connection.close()
        await server.recorder.until(lambda: len(server.recorder.records) == 10, "ten cancellations")
        assert (await get(server.port, "/metrics")).json()["queue_size"] == 0
        async with connected(server.port) as late:
            await late.send(brief(MODEL))
            await server.accepted(12)
            backend.streams[0].end()
            (await backend.got(1)).end()
            assert (await late.reply()).status == 200
        assert len(backend.streams) == 2  # nobody else reached the engine
        connections[0].close()
        await server.at_rest()
        metrics = (await get(server.port, "/metrics")).json()
        assert (metrics["rejected_count"], metrics["failed_count"]) == (0, 0)


async def test_who_waits_too_long_is_told_so() -> None:
    backend = ScriptedBackend(slots=1)
    async with serve(backend=backend, limits__queue_timeout_s="0.1") as server:
        connections = await fill(server, backend, 2)
        for connection in connections[1:]:
            reply = await connection.reply()
            assert (reply.status, reply.error["code"]) == (503, "queue_timeout")
            assert waits(reply)[0] >= 1
            connection.close()
        backend.streams[0].end()
        await connections[0].streamed()
        connections[0].close()
        assert len(backend.streams) == 1
        await server.at_rest()


# ---- order and batches


async def test_the_more_urgent_runs_first_and_equals_in_order() -> None:
    backend = ScriptedBackend(slots=1)
    async with serve(backend=backend, scheduling__policy="priority") as server:
        connections = []
        given = [None, 9, 5, 0, 7, 0, 2, 5]
        for number, priority in enumerate(given):
            connection = await Connection.open(server.port)
            body = chat_body(MODEL, max_tokens=1, priority=priority)
            await connection.send(post(body, headers={"x-request-id": f"r{number}"}))
            await server.accepted(number + 1)
            connections.append(connection)
        for number in range(len(given)):
            (await backend.got(number)).end()
        assert backend.ids == ["r0", "r3", "r5", "r6", "r2", "r7", "r4", "r1"]
        for connection in connections:
            assert (await connection.reply()).status == 200
            connection.close()


@pytest.mark.parametrize(
    ("tier", "before_default"), [("priority", True), ("fast", True), ("flex", False), ("auto", False)]
)
async def test_a_service_tier_is_a_priority(tier: str, before_default: bool) -> None:
    backend = ScriptedBackend(slots=1)
    async with serve(backend=backend, scheduling__policy="priority") as server:
        connections = []
        tiers = {"first": None, "plain": None, "tiered": tier}
        for number, name in enumerate(tiers):
            connection = await Connection.open(server.port)
            body = chat_body(MODEL, service_tier=tiers[name])
            await connection.send(post(body, headers={"x-request-id": name}))
            await server.accepted(number + 1)
            connections.append(connection)
        for number in range(3):
            stream = await backend.got(number)
            assert "service_tier" not in stream.request.body
            stream.end()
        assert (backend.ids.index("tiered") == 1) == before_default
        for connection in connections:
            await connection.reply()
            connection.close()


async def test_what_comes_together_runs_in_one_batch() -> None:
    """Visible from outside: eight at once take about as long as one, and the counters say why."""
    timing = {"engines.mock.prefill_latency_ms": "20", "engines.mock.decode_latency_ms": "10"}
    async with serve({**MOCK, **timing}) as server:
        body = chat_body("mock", max_tokens=10, ignore_eos=True)

        async def timed(num_requests: int) -> float:
            began_at = time.monotonic()
            replies = await asyncio.gather(*(ask(server.port, post(body)) for _ in range(num_requests)))
            assert all(reply.status == 200 for reply in replies)
            return time.monotonic() - began_at

        await timed(8)  # the first burst: whoever comes first runs alone
        alone_s = await timed(1)
        together_s = await timed(8)
        assert together_s < 3.5 * alone_s  # one after another: 8
        metrics = (await get(server.port, "/metrics")).json()
        assert sum(int(size) * count for size, count in metrics["batch_size_distribution"].items()) == 17
        assert max(map(int, metrics["batch_size_distribution"])) >= 7
        assert metrics["batch_size_avg"] > 2
        assert metrics["batch_count"] < 17


async def test_without_batching_one_at_a_time() -> None:
    async with serve(QUIET, scheduling__enable_batching="false") as server:
        await asyncio.gather(*(ask(server.port, brief()) for _ in range(6)))
        metrics = (await get(server.port, "/metrics")).json()
        assert metrics["batch_size_distribution"] == {"1": 6}


async def test_choices_are_all_there() -> None:
    async with serve(QUIET) as server:
        reply = await ask(server.port, brief(n=8, max_tokens=3))
        choices = orjson.loads(reply.body)["choices"]
        assert [choice["index"] for choice in choices] == list(range(8))
        assert len({choice["message"]["content"] for choice in choices}) > 1


async def test_a_full_queue_of_batch_work_makes_room_for_others() -> None:
    backend = ScriptedBackend(slots=1)
    async with serve(backend=backend, admission__max_queue_size="1") as server:
        connections = []
        for number, priority in enumerate((5, 8, 2)):
            connection = await Connection.open(server.port)
            await connection.send(brief(MODEL, priority=priority))
            await server.accepted(number + 1)
            connections.append(connection)
        running, batch, urgent = connections
        shed = await batch.reply()
        assert (shed.status, shed.error["code"]) == (503, "shed")
        assert waits(shed)[0] >= 1
        assert (await ask(server.port, brief(MODEL, priority=8))).error["code"] == "queue_full"
        for number, connection in enumerate((running, urgent)):
            (await backend.got(number)).end()
            assert (await connection.reply()).status == 200
        for connection in connections:
            connection.close()
        await server.at_rest()
        metrics = (await get(server.port, "/metrics")).json()
        assert (metrics["evicted_count"], metrics["reasons_by_outcome"]["evicted"]) == (1, {"shed": 1})


async def test_retries_beyond_the_budget_are_refused_while_there_is_a_queue() -> None:
    backend = ScriptedBackend(slots=1)
    async with serve(backend=backend, admission__retry_share="0") as server:
        connections = await fill(server, backend, 1)
        for number in range(10):
            connection = await Connection.open(server.port)
            await connection.send(post(chat_body(MODEL), headers={"x-stainless-retry-count": "1"}))
            await server.accepted(3 + number)
            connections.append(connection)
        again = post(chat_body(MODEL, user="another"), headers={"x-stainless-retry-count": "2"})
        reply = await ask(server.port, again)
        assert (reply.status, reply.error["code"]) == (503, "retry_budget_exhausted")
        assert waits(reply)[0] >= 1
        first = await ask(server.port, post(b"{", headers={"x-stainless-retry-count": "0"}))
        assert first.status == 400
        for connection in connections:
            connection.close()
        await server.settled(len(connections))
