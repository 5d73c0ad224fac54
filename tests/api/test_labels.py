"""A flood of nonsense makes no series: what is counted has names that we chose."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from tests.support.http import chat_body, connected, get, post, request_head
from tests.support.server import MOCK, Served, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUIET = {**MOCK, "engines.mock.prefill_latency_ms": "0", "engines.mock.decode_latency_ms": "0"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Served]:
    async with serve(QUIET) as served:
        yield served


async def series(server: Served) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    text = (await get(server.port, "/metrics?format=prometheus")).body.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def nonsense(server: Served, number: int) -> None:
    async with connected(server.port) as connection:
        for request in (
            post(chat_body(f"x-{number}")),
            post(chat_body(f'q"{number}\\\n\U0001f600')),
            post(chat_body("mock", priority=1000 + number)),
            post(chat_body("mock", service_tier=f"t{number}")),
            post(chat_body("mock", user=f"u-{number}", max_tokens=1), headers={"x-tenant-id": f"t{number}"}),
            request_head("GET", f"/random/{number}", {"host": "x"}),
            request_head("GET", f"/v1/models/m{number}", {"host": "x"}),
            request_head("DELETE", f"/health?{number}", {"host": "x"}),
        ):
            await connection.send(request)
            await connection.reply()


async def test_f46_a_b_c_d_the_number_of_series_does_not_depend_on_clients(server: Served) -> None:
    await nonsense(server, 0)
    before = await series(server)
    for number in range(1, 12):
        await nonsense(server, number)
    assert await series(server) == before
    everything = str(before)
    for marker in ("x-0", "u-0", "/random", "t0", "m0", "\U0001f600"):
        assert marker not in everything


async def test_f46_the_served_model_keeps_its_name(server: Served) -> None:
    assert any(("model", "mock") in labels for _, labels in await series(server))


async def test_a_method_nobody_knows_is_refused_by_the_parser(server: Served) -> None:
    async with connected(server.port) as connection:
        await connection.send(b"GARBLE / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await connection.reply()).status == 400


async def test_f46_both_forms_agree(server: Served) -> None:
    samples: dict[str, float] = {}
    text = (await get(server.port, "/metrics?format=prometheus")).body.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
    metrics = (await get(server.port, "/metrics")).json()
    assert metrics["completed_count"] == metrics["generated_tokens_total"] == 12
    assert samples["llm_runtime_completion_tokens_total"] == 12
    assert samples["llm_runtime_request_duration_seconds_count"] == 12
