"""`GET /admin/queue`: who may see it, and whether what it says of the queue is so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http import Connection, ask, chat_body, get, post
from tests.support.scripted import MODEL, PROMPT_TOKENS, ScriptedBackend, answer
from tests.support.server import MOCK, Served, serve
from tests.support.tenants import ANN, BOB, ann, bearer, bob, tenants

ADMIN = "sk-ADMINSECRET0003"
SETTINGS = {**MOCK, **tenants(ann=ann(weight=2), bob=bob(ceiling="batch")), "server.admin_api_keys": ADMIN}


async def queue(server: Served) -> dict[str, Any]:
    reply = await get(server.port, "/admin/queue", bearer(ADMIN))
    assert reply.status == 200
    report: dict[str, Any] = reply.json()
    return report


async def waiting(server: Served, key: str, **fields: Any) -> Connection:
    """A request that was let in."""
    connection = await Connection.open(server.port)
    num_accepted = len(server.recorder.accepted_ids)
    await connection.send(post(chat_body(MODEL, **fields), headers=bearer(key)))
    await server.accepted(num_accepted + 1)
    return connection


async def test_only_an_admin_key_opens_it_and_it_opens_nothing_else() -> None:
    async with serve(SETTINGS) as server:
        for path in ("/admin/queue", "/admin/queue/", "/admin/other"):
            for headers in ({}, bearer(ANN), bearer("sk-nobody"), {"x-api-key": ANN}):
                reply = await get(server.port, path, headers)
                assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert (await get(server.port, "/admin/queue", {"x-api-key": ADMIN})).status == 200
        assert (await get(server.port, "/admin/other", bearer(ADMIN))).status == 404
        assert (await get(server.port, "/metrics", bearer(ADMIN))).status == 401
        assert (await ask(server.port, post(chat_body("mock"), headers=bearer(ADMIN)))).status == 401


@pytest.mark.parametrize("more", [{}, tenants(ann=ann())])
async def test_without_an_admin_key_there_is_no_such_path(more: dict[str, str]) -> None:
    async with serve({**MOCK, **more}) as server:
        assert (await get(server.port, "/admin/queue", bearer(ANN))).status == 404
        assert "/admin/queue" not in (await get(server.port, "/openapi.json", bearer(ANN))).json()["paths"]


async def test_admin_keys_alone_close_nothing_else() -> None:
    async with serve({**MOCK, "server.admin_api_keys": ADMIN}) as server:
        assert (await get(server.port, "/admin/queue")).status == 401
        assert (await ask(server.port, post(chat_body("mock", max_tokens=1)))).status == 200


async def test_an_idle_queue() -> None:
    async with serve(SETTINGS) as server:
        report = await queue(server)
        assert report["policy"] == "fifo"
        (pool,) = report["pools"]
        assert (pool["model"], pool["num_waiting"], pool["num_running"]) == ("mock", 0, 0)
        assert pool["head"] is None
        assert pool["flows"] == []
        nobody = {"num_waiting": 0, "predicted_wait_s": 0.0}
        assert pool["classes"] == {"interactive": nobody, "standard": nobody, "batch": nobody}


async def test_who_waits_and_what_each_has_received() -> None:
    backend = ScriptedBackend(slots=1)
    async with serve(SETTINGS, backend=backend) as server:
        connections = [
            await waiting(server, ANN),
            await waiting(server, ANN, max_tokens=100),
            await waiting(server, BOB),
            await waiting(server, ANN, priority=1),
        ]
        (pool,) = (await queue(server))["pools"]
        assert (pool["num_waiting"], pool["num_running"], pool["num_free_slots"]) == (3, 1, 0)
        assert {cls: one["num_waiting"] for cls, one in pool["classes"].items()} == {
            "interactive": 1, "standard": 1, "batch": 1
        }  # fmt: skip
        head = pool["head"]
        assert (head["tenant"], head["why"], head["class"], head["num_slots"]) == (
            "ann", "no_free_slot", "standard", 1
        )  # fmt: skip
        assert head["request_id"] == server.recorder.accepted_ids[1]
        assert head["waited_s"] >= 0
        flows = {(flow["class"], flow["tenant"]): flow for flow in pool["flows"]}
        assert list(flows) == [("interactive", "ann"), ("standard", "ann"), ("batch", "bob")]
        standard = flows["standard", "ann"]
        assert (standard["num_waiting"], standard["num_running"], standard["weight"]) == (1, 1, 2.0)
        assert standard["num_waiting_tokens"] > 100
        assert sum(flow["num_waiting_tokens"] for flow in pool["flows"]) == pool["num_waiting_tokens"]
        assert flows["batch", "bob"]["received"]["num_requests"] == 0

        backend.streams[0].say("a", "b", "c")
        backend.streams[0].end()
        assert (await connections[0].reply()).status == 200
        await backend.got(1)
        (pool,) = (await queue(server))["pools"]
        flows = {(flow["class"], flow["tenant"]): flow for flow in pool["flows"]}
        assert flows["standard", "ann"]["received"] == {
            "num_requests": 1,
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": 3,
            "service_tokens": PROMPT_TOKENS + 2 * 3,
        }
        assert (flows["standard", "ann"]["num_waiting"], flows["standard", "ann"]["oldest_wait_s"]) == (0, 0)

        text = (await get(server.port, "/metrics?format=prometheus", bearer(ANN))).body.decode()
        for series in (
            f'tenant_requests_waiting{{model="{MODEL}",priority_class="batch",tenant="bob"}} 1',
            f'tenant_requests_waiting{{model="{MODEL}",priority_class="interactive",tenant="ann"}} 1',
            f'tenant_service_tokens_total{{tenant="ann",priority_class="standard"}} {PROMPT_TOKENS + 6}',
            f'queue_head_waits{{model="{MODEL}",reason="no_free_slot"}} 1',
            f'queue_head_waits{{model="{MODEL}",reason="class_cap"}} 0',
        ):
            assert f"llm_runtime_{series}\n" in text
        for connection in connections:
            connection.close()
        await server.settled(4)
        (pool,) = (await queue(server))["pools"]
        assert (pool["num_waiting"], pool["head"]) == (0, None)


async def test_the_wait_that_operators_see_is_the_one_that_refusals_tell() -> None:
    """Whose wait is unknown is let in; once three have ended, nobody may wait and each is told how long.
    While the engine stands still the wait grows: what is told lies between what is seen before and after."""
    backend = ScriptedBackend(slots=1)
    async with serve({**SETTINGS, "admission.max_predicted_wait_s": "1e-9"}, backend=backend) as server:
        connections = [await waiting(server, ANN, user=str(number)) for number in range(6)]
        assert (await queue(server))["pools"][0]["classes"]["standard"]["predicted_wait_s"] is None
        for number in range(3):
            stream = await backend.got(number)
            stream.say("a", "b")
            stream.end()
            assert (await connections[number].reply()).status == 200
        await backend.got(3)
        before = (await queue(server))["pools"][0]["classes"]["standard"]
        refused = await ask(server.port, post(chat_body(MODEL), headers=bearer(ANN)))
        after = (await queue(server))["pools"][0]["classes"]["standard"]
        assert (refused.status, refused.error["code"]) == (503, "would_miss_deadline")
        told_s = int(refused.headers["retry-after-ms"]) / 1000
        assert before["num_waiting"] == 2
        assert 0 < before["predicted_wait_s"] <= told_s + 0.001 <= after["predicted_wait_s"] + 0.003
        for connection in connections:
            connection.close()
        await server.settled(6)


async def test_a_head_that_needs_more_slots_than_are_free_says_so() -> None:
    backend = ScriptedBackend(slots=2)
    async with serve(SETTINGS, backend=backend) as server:
        running = await waiting(server, ANN)
        await backend.got(0)
        blocked = await waiting(server, ANN, n=2)
        head = (await queue(server))["pools"][0]["head"]
        assert (head["why"], head["num_slots"], head["at_most_s"]) == ("needs_more_slots", 2, None)
        running.close()
        blocked.close()
        await server.settled(2)


async def test_a_head_whose_class_is_capped_says_so() -> None:
    backend = ScriptedBackend(slots=4)
    settings = {**SETTINGS, "scheduling.policy": "priority", "scheduling.batch_slot_share": "0.25"}
    async with serve(settings, backend=backend) as server:
        running = await waiting(server, BOB)
        await backend.got(0)
        blocked = await waiting(server, BOB)
        pool = (await queue(server))["pools"][0]
        assert pool["head"]["why"] == "class_cap"
        assert pool["num_free_slots"] == 3
        running.close()
        blocked.close()
        await server.settled(2)


async def test_tenants_without_keys_are_told_apart_and_not_remembered_without_bound() -> None:
    settings = {**MOCK, "server.admin_api_keys": ADMIN}
    async with serve(settings, backend=ScriptedBackend(on_open=answer("a"))) as server:
        for number in range(1100):
            request = post(chat_body(MODEL), headers={"x-tenant-id": f"t{number}"})
            assert (await ask(server.port, request)).status == 200
        flows = (await queue(server))["pools"][0]["flows"]
        assert len(flows) == 1000
        assert "t0" not in {flow["tenant"] for flow in flows}
        text = (await get(server.port, "/metrics?format=prometheus")).body.decode()
        assert "t1099" not in text
