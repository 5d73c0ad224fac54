"""Deadlines that clients declare for one request, by header, beside those of their tenant."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http import Connection, ask, chat_body, post
from tests.support.scripted import MODEL, ScriptedBackend, answer
from tests.support.server import MOCK, serve
from tests.support.tenants import ANN, BOB, ann, bearer, bob, tenants


def chat(key: str = ANN, headers: dict[str, str] | None = None, **fields: Any) -> bytes:
    return post(chat_body(MODEL, **fields), headers={**bearer(key), **(headers or {})})


async def test_a_client_declares_deadlines_of_one_request_by_header() -> None:
    """The tighter of its own and its tenant's; for a stream and a plain reply alike."""
    backend = ScriptedBackend(on_open=answer("a"))
    settings = {**MOCK, **tenants(ann=ann(slo={"first_token_s": 2, "total_s": 30}), bob=bob())}
    own = {"x-slo-ttft-ms": "1500", "x-slo-total-ms": "45000.5"}
    async with serve(settings, backend=backend) as server:
        for key in (ANN, BOB):
            for stream in (True, False):
                assert (await ask(server.port, chat(key, headers=own, stream=stream))).status == 200
    found = [
        (limits.request_s, limits.total_s) for limits in (each.request.limits for each in backend.streams)
    ]
    assert found == [(1.5, 30), (30, None), (1.5, 45.0005), (45.0005, None)]


@pytest.mark.parametrize("value", ["0", "-5", "soon", "inf", "NaN", " "])
@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-slo-total-ms"])
async def test_a_deadline_that_is_none_is_refused_by_name(name: str, value: str) -> None:
    backend = ScriptedBackend(on_open=answer("a"))
    async with serve({**MOCK, **tenants(ann=ann())}, backend=backend) as server:
        reply = await ask(server.port, chat(headers={name: value}))
        assert (reply.status, reply.error["param"]) == (400, name)
    assert not backend.streams


async def test_a_declared_deadline_ends_what_misses_it() -> None:
    async with serve({**MOCK, **tenants(ann=ann())}, backend=ScriptedBackend()) as server:
        reply = await ask(server.port, chat(headers={"x-slo-total-ms": "50"}))
        assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")


async def test_the_earliest_declared_deadline_is_served_first() -> None:
    backend = ScriptedBackend(slots=1)
    settings = {**MOCK, **tenants(ann=ann()), "scheduling.policy": "deadline"}
    async with serve(settings, backend=backend) as server:
        connections = [await Connection.open(server.port) for _ in range(4)]
        for number, (connection, deadline_ms) in enumerate(
            zip(connections, ("90000", "80000", "20000", "50000"), strict=True)
        ):
            await connection.send(chat(headers={"x-slo-total-ms": deadline_ms}))
            await server.accepted(number + 1)
        for number in range(4):
            (await backend.got(number)).end()
        for connection in connections:
            assert (await connection.reply()).status == 200
            connection.close()
    served = [engine.request.limits.request_s for engine in backend.streams]
    assert served == [90, 20, 50, 80]  # the first found a free slot
