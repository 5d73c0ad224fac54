"""Plain answers, refusals and lost connections, as clients of the whole server see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_runtime.core.outcome import Outcome
from tests.engines.openai.upstreams import (
    REPLY,
    Answer,
    asked,
    fake_upstream,
    gateway,
    header,
    path_of,
    reply,
    send_stream,
    sing,
)
from tests.engines.upstream.stubs import Peer, turns_until
from tests.support.http import CHAT, Reply, ask, chat_body, connected, get, post
from tests.wire.builders import DONE, ROLE, STOP, USAGE, text

PAGE = b"<html><head><title>502</title></head><body>nginx at 10.0.0.1 /var/www</body></html>"


def answers(raw: bytes) -> Answer:
    async def answer(peer: Peer, request: bytes) -> None:
        await peer.send(raw)

    return answer


async def answered(answer: Answer, **fields: Any) -> tuple[Reply, int]:
    """What a client gets, and how often the upstream was asked."""
    async with fake_upstream(answer) as fake, gateway(fake) as served:
        got = await ask(served.port, post(chat_body("m", **fields)))
        await served.at_rest()
        return got, len(fake.asked)


async def test_a_plain_request_goes_plain_and_its_answer_is_kept() -> None:
    body = {**REPLY, "system_fingerprint": "f", "timings": {"x": 1}, "usage": {**REPLY["usage"], "y": [2]}}
    async with fake_upstream(answers(reply(body))) as fake, gateway(fake) as served:
        got = await ask(served.port, post(chat_body("m", temperature=0, unknown=1, priority=2)))
        (sent,) = fake.asked
    assert asked(sent) == {**chat_body("m"), "temperature": 0, "unknown": 1}
    assert got.status == 200
    answer = got.json()
    for name, value in body.items():
        if name != "usage":
            assert answer[name] == value
    assert answer["usage"]["y"] == [2]
    assert answer["usage"]["total_tokens"] == 7


async def test_usage_and_outcome_of_a_plain_answer() -> None:
    async with fake_upstream() as fake, gateway(fake) as served:
        await ask(served.port, post(chat_body("m")))
        await served.at_rest()
        (record,) = served.recorder.records
    assert record.outcome is Outcome.COMPLETED
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (3, 4)
    assert not record.usage.estimated
    assert record.timeline.ttft_s is None, "nobody knows when the first token of a plain answer was made"


async def test_f58_g_the_request_id_goes_upstream_and_comes_back() -> None:
    async with fake_upstream() as fake, gateway(fake) as served:
        got = await ask(served.port, post(chat_body("m"), headers={"x-request-id": "abc-1"}))
        assert got.headers["x-request-id"] == "abc-1"
        assert header(fake.asked[0], "x-request-id") == "abc-1"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (reply(PAGE, "502 Bad Gateway", "text/html"), 502),
        (reply(PAGE, "200 OK", "text/html"), 502),
        (reply(b'{"id":"x","choices":[{"mess', "200 OK"), 502),
        (reply(b"", "200 OK"), 502),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 502),
        (reply({"detail": "x"}, "500 Internal Server Error"), 502),
        (reply({"error": "just a string"}, "400 Bad Request"), 400),
        (reply(b"", "301 Moved Permanently", "text/html", location="http://10.0.0.1/v1"), 502),
        (reply({"error": {"message": "boom at 10.0.0.1", "type": "server_error"}}), 502),
        (reply({"object": "chat.completion"}), 502),
        (reply([1, 2]), 502),
        (reply(b"HTTP/1.1", "599 Odd", ""), 502),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", 502),
    ],
    ids=["a", "b", "c", "d", "e", "f", "g", "h", "i", "no_choices", "a_list", "odd_status", "not_http"],
)
async def test_f34_answers_that_are_none(raw: bytes, status: int, stream: bool) -> None:
    got, num_asked = await answered(answers(raw), stream=stream)
    assert got.status == status
    assert num_asked == 1
    for secret in ("10.0.0.1", "nginx", "html", "/var/www"):
        assert secret not in got.error["message"]


async def test_f34_k_a_stream_in_answer_to_a_plain_request_is_collected() -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await send_stream(peer, ROLE, text("Blue "), text("whales"), STOP, USAGE, DONE)

    got, _ = await answered(answer)
    assert got.json()["choices"][0]["message"]["content"] == "Blue whales"
    assert got.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "body", "seen"),
    [
        ("400 Bad Request", {"error": {"message": "top_p is odd", "param": "top_p", "code": None}}, 400),
        ("413 Content Too Large", {"error": {"message": "too large"}}, 413),
        ("422 Unprocessable Content", {"detail": "no"}, 422),
        ("401 Unauthorized", {"error": {"message": "Incorrect API key sk-UPSTREAMSECRET"}}, 401),
        ("403 Forbidden", {"error": {"message": "no"}}, 403),
        ("404 Not Found", {"detail": "Not Found"}, 404),
    ],
)
async def test_f31_a_b_the_clients_faults_keep_their_status(
    status: str, body: Any, seen: int, stream: bool
) -> None:
    async with fake_upstream(answers(reply(body, status))) as fake, gateway(fake) as served:
        for _ in range(5):
            got = await ask(served.port, post(chat_body("m", stream=stream)))
            assert got.status == seen
            assert "SECRET" not in got.error["message"]
        assert len(fake.asked) == 5, "none is tried twice"
        assert (await get(served.port, "/health/ready")).status == 200
        if seen == 400:
            assert got.error["param"] == "top_p"
            assert got.error["message"] == "top_p is odd"


@pytest.mark.parametrize(("status", "seen"), [("429 Too Many Requests", 429), ("503 Busy", 503)])
@pytest.mark.parametrize("stream", [False, True])
async def test_f31_c_h_back_pressure_is_passed_on_and_not_held_against_anybody(
    status: str, seen: int, stream: bool
) -> None:
    busy = True

    async def answer(peer: Peer, request: bytes) -> None:
        await (peer.send(reply({}, status, retry_after="5")) if busy else sing(peer, request))

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        got = await ask(served.port, post(chat_body("m", stream=stream)))
        assert got.status == seen
        assert got.headers["retry-after"] == "5"
        assert got.headers["retry-after-ms"] == "5000"
        assert len(fake.asked) == 1, "asking again at once would only add to its load"
        assert (await get(served.port, "/health/ready")).status == 200
        busy = False
        assert (await ask(served.port, post(chat_body("m")))).status == 200


async def test_f31_d_f34_f55_h_a_dead_upstream_fails_fast_and_comes_back() -> None:
    async with fake_upstream() as fake, gateway(fake, {"engines.openai.health_interval_s": "0.2"}) as served:
        pool = served.runtime.pools[0]
        port = fake.server.address.port
        await fake.server.stop_listening()
        started_at = served.runtime.clock.now()
        got = await ask(served.port, post(chat_body("m")))
        assert got.status == 503
        assert int(got.headers["retry-after"]) >= 1
        assert served.runtime.clock.now() - started_at < 2.0
        await served.recorder.until(lambda: served.recorder.states[-1][1] == "crashed", "the end noticed")
        health = await get(served.port, "/health/ready")
        assert health.status == 503
        assert "does not accept connections" in health.json()["reason"]
        assert "127.0.0.1" not in health.body.decode()
        refused = await ask(served.port, post(chat_body("m", stream=True)))
        assert refused.status == 503
        assert pool.dispatcher.num_waiting == 0
        await fake.server.listen_again(port)
        await served.recorder.until(lambda: served.recorder.states[-1][1] == "ready", "it is back")
        assert (await ask(served.port, post(chat_body("m")))).status == 200
        assert (await get(served.port, "/health/ready")).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_f35_e_an_upstream_that_hangs_up_on_a_request(stream: bool) -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        peer.close()

    got, num_asked = await answered(answer, stream=stream)
    assert got.status == 502
    assert num_asked == 2, "on the connection that was open already, and once on a fresh one"


async def test_f35_b_one_request_per_connection() -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await peer.send(reply(REPLY, connection="close"))
        peer.close()

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        for _ in range(5):
            assert (await ask(served.port, post(chat_body("m")))).status == 200
        assert len(fake.asked) == 5


async def test_f35_a_a_connection_closed_as_idle_costs_nobody_anything() -> None:
    """The upstream closes each connection after its answer, without saying so."""

    async def answer(peer: Peer, request: bytes) -> None:
        await peer.send(reply(REPLY))
        peer.close()

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        for _ in range(20):
            assert (await ask(served.port, post(chat_body("m")))).status == 200
        assert len(fake.asked) == 20
        assert all(record.outcome is Outcome.COMPLETED for record in served.recorder.records)


async def test_f29_d_half_a_plain_answer_is_no_answer() -> None:
    async def answer(peer: Peer, request: bytes) -> None:
        await peer.send(reply(REPLY)[:-40])
        peer.reset()

    got, num_asked = await answered(answer)
    assert got.status == 502
    assert num_asked == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_f25_b_c_d_a_client_that_leaves_closes_the_connection_upstream(stream: bool) -> None:
    closed = asyncio.Event()

    async def answer(peer: Peer, request: bytes) -> None:
        if stream:
            await send_stream(peer, ROLE, text("Blue "), whole=False)
        await peer.closed()
        closed.set()

    async with fake_upstream(answer) as fake, gateway(fake) as served:
        async with connected(served.port) as client:
            await client.send(post(chat_body("m", stream=stream)))
            if stream:
                await client.head()
                await client.chunk()
            else:
                await turns_until(lambda: len(fake.asked) == 1)
        await served.at_rest()
        (record,) = served.recorder.records
        assert record.outcome is Outcome.CANCELLED
        async with asyncio.timeout(10):
            await closed.wait()


async def test_several_models_of_one_upstream() -> None:
    async with fake_upstream(models=["a", "org/b"]) as fake, gateway(fake) as served:
        listed = (await get(served.port, "/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["a", "org/b"]
        assert (await get(served.port, "/v1/models/org/b")).json()["id"] == "org/b"
        for name in ("a", "org/b"):
            got = await ask(served.port, post(chat_body(name)))
            assert got.json()["model"] == name
            assert asked(fake.asked[-1])["model"] == name
        missing = await ask(served.port, post(chat_body("c")))
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")
        assert len(fake.asked) == 2
        settled = {record.request.model for record in served.recorder.records}
        assert settled == {"a", "org/b"}
        metrics = await get(served.port, "/metrics?format=prometheus")
        assert 'model="org/b"' in metrics.body.decode()


async def test_only_the_named_model() -> None:
    async with fake_upstream(models=["a", "b"]) as fake, gateway(fake, {"model.name": "b"}) as served:
        assert [model["id"] for model in (await get(served.port, "/v1/models")).json()["data"]] == ["b"]
        assert (await ask(served.port, post(chat_body("a")))).status == 404
        assert (await ask(served.port, post(chat_body("b")))).status == 200


async def test_a_path_prefix_a_query_and_a_user_reach_the_upstream_and_nobody_else() -> None:
    settings = {"engines.openai.headers": "X-Team: blue"}
    async with fake_upstream() as fake:
        url = fake.url.replace("http://", "http://user:PASSWORD-1@") + "/team/v1?api-version=7"
        async with gateway(fake, {**settings, "engines.openai.url": url}) as served:
            assert (await ask(served.port, post(chat_body("m")))).status == 200
            (sent,) = fake.asked
            assert path_of(sent) == "/team" + CHAT + "?api-version=7"
            assert header(sent, "authorization") == "Basic dXNlcjpQQVNTV09SRC0x"
            assert header(sent, "x-team") == "blue"
            for path in ("/v1/models", "/health", "/metrics", "/load", "/version"):
                page = (await get(served.port, path)).body.decode()
                assert "PASSWORD-1" not in page
                assert "127.0.0.1" not in page


async def test_a_key_goes_to_the_upstream_and_the_clients_does_not() -> None:
    settings = {"engines.openai.api_key": "sk-UPSTREAMSECRET", "server.api_keys": "sk-CLIENTSECRET"}
    async with fake_upstream() as fake, gateway(fake, settings) as served:
        key = {"authorization": "Bearer sk-CLIENTSECRET"}
        assert (await ask(served.port, post(chat_body("m"), headers=key))).status == 200
        assert (await ask(served.port, post(chat_body("m")))).status == 401
        assert header(fake.asked[0], "authorization") == "Bearer sk-UPSTREAMSECRET"
        assert not any(b"CLIENTSECRET" in request for request in fake.server.requests)
        assert all(b"UPSTREAMSECRET" in request for request in fake.server.requests)
