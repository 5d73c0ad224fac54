"""Paths, methods, and what is said about the API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.config import Target
from llm_runtime.bench.facts import server_facts
from llm_runtime.core.build import COMPILED
from tests.support.http import CHAT, COMPLETIONS, Reply, ask, chat_body, connected, get, post, request_head
from tests.support.server import MOCK, Served, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "org/name"
SHORT = chat_body(MODEL, max_tokens=1)
PROXIED = {"x-forwarded-proto": "https", "x-forwarded-host": "api.example", "x-forwarded-prefix": "/llm"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Served]:
    async with serve(model__name=MODEL) as served:
        yield served


async def send(server: Served, method: str, path: str, headers: dict[str, str] | None = None) -> Reply:
    async with connected(server.port) as connection:
        await connection.send(request_head(method, path, {"host": "test", **(headers or {})}))
        return await connection.reply(has_body=method != "HEAD")


@pytest.mark.parametrize("headers", [{}, PROXIED], ids=["direct", "proxied"])
@pytest.mark.parametrize("path", [CHAT, CHAT + "/", CHAT + "//"])
async def test_f59_a_slash_at_the_end_is_served(server: Served, path: str, headers: dict[str, str]) -> None:
    reply = await ask(server.port, post(SHORT, path, headers))
    assert reply.status == 200
    assert reply.json()["model"] == MODEL


@pytest.mark.parametrize("headers", [{}, PROXIED], ids=["direct", "proxied"])
@pytest.mark.parametrize(
    "path",
    [
        "//v1/chat/completions",
        "/chat/completions",
        "/V1/chat/completions",
        "/v1/v1/chat/completions",
        "/v1",
        "/",
    ],
)
async def test_f59_other_spellings_are_not_found(server: Served, path: str, headers: dict[str, str]) -> None:
    for request in (post(SHORT, path, headers), request_head("GET", path, {"host": "x", **headers})):
        reply = await ask(server.port, request)
        assert (reply.status, reply.error["code"]) == (404, "not_found")
        assert "location" not in reply.headers


@pytest.mark.parametrize("path", ["/v1/models/org/name", "/v1/models/org%2Fname", "/v1/models/org/name/"])
async def test_f59_a_model_with_a_slash(server: Served, path: str) -> None:
    reply = await get(server.port, path)
    assert reply.status == 200
    assert reply.json() | {"created": 0} == {
        "id": MODEL, "object": "model", "created": 0, "owned_by": "mock", "max_model_len": 8192,
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/"])
async def test_the_models(server: Served, path: str) -> None:
    reply = (await get(server.port, path)).json()
    assert reply["object"] == "list"
    assert [model["id"] for model in reply["data"]] == [MODEL]


async def test_f11_f_an_unknown_model(server: Served) -> None:
    reply = await get(server.port, "/v1/models/no-such")
    assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, CHAT + "/"])
async def test_f59_a_wrong_method_names_the_right_one(server: Served, method: str, path: str) -> None:
    reply = await send(server, method, path)
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    if method != "HEAD":
        assert reply.error["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics", "/version", "/load"])
@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS"])
async def test_what_can_only_be_read(server: Served, method: str, path: str) -> None:
    reply = await send(server, method, path, {"content-length": "0"})
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
    assert reply.error["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/health/live", "/metrics", "/version", "/docs"])
async def test_head_is_get_without_a_body(server: Served, path: str) -> None:
    async with connected(server.port) as connection:
        await connection.send(request_head("HEAD", path, {"host": "x"}))
        head = await connection.reply(has_body=False)
        # The connection is in step: the next reply is the next request's.
        await connection.send(request_head("GET", path, {"host": "x"}))
        whole = await connection.reply()
    assert (head.status, whole.status) == (200, 200)
    assert head.headers["content-type"] == whole.headers["content-type"]


async def test_each_reply_has_an_id(server: Served) -> None:
    wanted = {"x-request-id": "abc-1"}
    async with connected(server.port) as connection:
        for request in (
            post(SHORT, headers=wanted),
            post(b"{", headers=wanted),
            request_head("GET", CHAT, {"host": "x", **wanted}),
            request_head("GET", "/health", {"host": "x", **wanted}),
            request_head("GET", "/nowhere", {"host": "x", **wanted}),
            request_head("GET", "/v1/models/nothing", {"host": "x", **wanted}),
            request_head("GET", "/metrics?format=nonsense", {"host": "x", **wanted}),
        ):
            await connection.send(request)
            reply = await connection.reply()
            assert reply.headers["x-request-id"] == "abc-1"
        await connection.send(post(SHORT))
        assert (await connection.reply()).headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    "unsafe", ["a b", "x" * 10_240, "a\U0001f600".encode().decode("latin-1"), "a;level=ERROR"]
)
async def test_an_unsafe_id_is_replaced(server: Served, unsafe: str) -> None:
    raw = post(SHORT).replace(b"\r\n\r\n", b"\r\nx-request-id: " + unsafe.encode("latin-1") + b"\r\n\r\n", 1)
    reply = await ask(server.port, raw)
    assert reply.status == 200
    assert reply.headers["x-request-id"].startswith("req_")


# ---- the description


async def test_the_description_has_the_endpoints_with_their_fields(server: Served) -> None:
    description: dict[str, Any] = (await get(server.port, "/openapi.json")).json()
    for path, schema in ((CHAT, "ChatRequest"), (COMPLETIONS, "CompletionsRequest")):
        operation = description["paths"][path]["post"]
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference == f"#/components/schemas/{schema}"
        assert {"200", "400", "401", "404", "413", "429", "503", "504"} <= operation["responses"].keys()
        assert "text/event-stream" in operation["responses"]["200"]["content"]
    fields = description["components"]["schemas"]["ChatRequest"]
    assert {"model", "messages"} <= set(fields["required"])
    assert {"temperature", "max_completion_tokens", "tools", "priority"} <= fields["properties"].keys()
    assert "HTTPValidationError" not in description["components"]["schemas"]  # no such body is ever sent


async def test_every_described_path_is_served(server: Served) -> None:
    paths = (await get(server.port, "/openapi.json")).json()["paths"]
    assert {CHAT, COMPLETIONS, "/v1/models", "/v1/models/{model}", "/health", "/health/live", "/health/ready",
            "/version", "/load", "/metrics"} <= paths.keys()  # fmt: skip
    for path, operations in paths.items():
        if "get" in operations:
            reply = await get(server.port, path.replace("{model}", MODEL))
            assert reply.status == 200, path
        else:
            reply = await ask(server.port, post({}, path))
            assert reply.status == 400, path
            assert b"is missing" in reply.body


async def test_the_page_shows_the_description(server: Served) -> None:
    page = await get(server.port, "/docs")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert b"/openapi.json" in page.body


async def test_the_version(server: Served) -> None:
    from llm_runtime import __version__

    told = (await get(server.port, "/version")).json()
    assert told["version"] == __version__
    assert (told["settings"]["backend"], told["settings"]["scheduling"]["policy"]) == ("mock", "fifo")


async def test_a_benchmark_learns_the_settings_of_the_server_and_no_secret() -> None:
    """What `bench run` keeps in its result file."""
    settings = {
        **MOCK, "scheduling.policy": "fair", "scheduling.fair_prompts": "2", "admission.max_queue_size": "7",
        "server.api_keys": "sk-secret", "limits.request_timeout_s": "9",
    }  # fmt: skip
    async with serve(settings) as server:
        async with LoadClient(Target(server.base_url, api_key="sk-secret")) as client:
            facts = await server_facts(client)
        told = facts["version"]["settings"]
        assert (told["scheduling"]["policy"], told["scheduling"]["fair_prompts"]) == ("fair", 2)
        assert (told["max_queue_size"], told["request_timeout_s"], told["compiled"]) == (7, 9, COMPILED)
        assert "sk-secret" not in json.dumps(facts)


async def test_the_load_is_in_slots(server: Served) -> None:
    load = (await get(server.port, "/load")).json()
    assert (load["server_load"], load["draining"]) == (0, False)
    (pool,) = load["pools"]
    assert (pool["model"], pool["num_slots"], pool["num_free_slots"], pool["num_waiting"]) == (MODEL, 8, 8, 0)
    assert pool["endpoints"] == ["chat", "completions"]
    assert pool["replicas"] == {"mock-0": {"state": "ready", "num_slots": 8, "num_taken_slots": 0}}


# ---- metrics


@pytest.mark.parametrize(
    ("path", "accept", "content_type"),
    [
        ("/metrics", None, "application/json"),
        ("/metrics", "*/*", "application/json"),
        ("/metrics", "text/html,application/xhtml+xml,*/*;q=0.8", "application/json"),
        ("/metrics", "text/plain", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "/metrics",
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
            "application/openmetrics-text",
        ),
        ("/metrics?format=prometheus", None, "text/plain; version=0.0.4; charset=utf-8"),
        ("/metrics?format=openmetrics", "text/plain", "application/openmetrics-text"),
        ("/metrics?format=json", "text/plain", "application/json"),
    ],
)
async def test_metrics_in_the_form_that_is_asked_for(
    server: Served, path: str, accept: str | None, content_type: str
) -> None:
    reply = await get(server.port, path, {"accept": accept} if accept else {})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith(content_type)
    if content_type == "application/json":
        assert {"request_count", "queue_size", "gpu", "rejections_by_reason"} <= reply.json().keys()
    else:
        assert b"# TYPE" in reply.body


async def test_an_unknown_form_is_refused(server: Served) -> None:
    reply = await get(server.port, "/metrics?format=xml")
    assert (reply.status, reply.error["param"]) == (400, "format")


async def test_below_a_mount_point() -> None:
    """A proxy or an outer application may put everything under a prefix."""
    async with serve() as server:
        server.server.config.root_path = "/llm"
        reply = await ask(server.port, post(chat_body("mock", max_tokens=1)))
        assert reply.status == 200
        for path in ("/health", "/v1/models", "/metrics"):
            assert (await get(server.port, path)).status == 200
        assert (await get(server.port, "/nowhere")).status == 404
