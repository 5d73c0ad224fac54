"""Clients that do not get as far as the application: headers too slow or too large, and what is no HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from llm_runtime.web.asgi import send_bytes
from llm_runtime.web.cycle import Cycle
from llm_runtime.web.protocol import ServerProtocol, install
from tests.support.http import CHAT, Connection, chat_body, chunk, connected, post, request_head
from tests.support.scripted import MODEL, ScriptedBackend, answer
from tests.support.server import MOCK, Served, serve

HURRIED = {**MOCK, "limits.body_timeout_s": "0.2"}


async def assert_refused(connection: Connection, status: int, code: str) -> None:
    reply = await connection.reply()
    assert (reply.status, reply.error["code"], reply.error["type"]) == (status, code, "invalid_request_error")
    assert reply.headers["connection"] == "close"
    assert await connection.at_end()


async def assert_serves(server: Served) -> None:
    async with connected(server.port) as connection:
        await connection.send(post(chat_body(MODEL)))
        assert (await connection.reply()).status == 200


@pytest.mark.parametrize(
    "garbage",
    [b"GARBLE / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n", b"{}\r\n\r\n",
     b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
     b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
     b"GET / HTTP/1.1\r\nx-request-id: a\rb\r\n\r\n"],
    ids=["method", "TLS", "version", "JSON", "two lengths", "length and chunks", "a bare CR"],
)  # fmt: skip
async def test_what_is_no_http(garbage: bytes) -> None:
    async with serve(backend=ScriptedBackend(on_open=answer("a"))) as server:
        async with connected(server.port) as connection:
            await connection.send(garbage)
            await assert_refused(connection, 400, "invalid_http")
        await assert_serves(server)


async def test_garbage_after_a_good_request_does_not_spoil_its_answer() -> None:
    backend = ScriptedBackend()
    async with serve(backend=backend) as server, connected(server.port) as connection:
        await connection.send(post(chat_body(MODEL, stream=True)) + b"\0garbage\r\n\r\n")
        engine = await backend.got(0)
        await connection.send(b"and more of it")
        engine.say("a", "b")
        engine.end()
        _, stream = await connection.streamed()
        assert (stream.text, stream.done) == ("ab", True)
        assert await connection.at_end()
        await server.at_rest()


async def test_who_is_deaf_still_notices_that_the_client_left() -> None:
    backend = ScriptedBackend()
    async with serve(backend=backend) as server:
        connection = await Connection.open(server.port)
        await connection.send(post(chat_body(MODEL), headers={"x-request-id": "one"}) + b"\0garbage")
        await backend.got(0)
        connection.close()
        assert (await server.recorder.ended("one")).reason == "client_gone"


async def test_garbage_as_the_next_request() -> None:
    backend = ScriptedBackend(on_open=answer("a"))
    async with serve(backend=backend) as server, connected(server.port) as connection:
        await connection.send(post(chat_body(MODEL)))
        assert (await connection.reply()).status == 200
        await connection.send(b"\0garbage\r\n\r\n")
        await assert_refused(connection, 400, "invalid_http")


async def test_a_body_that_goes_wrong_on_its_way() -> None:
    chunked = {"host": "x", "content-type": "application/json", "transfer-encoding": "chunked"}
    async with serve(backend=ScriptedBackend(on_open=answer("a"))) as server:
        async with connected(server.port) as connection:
            await connection.send(request_head("POST", CHAT, chunked) + chunk(b'{"model":') + b"zz\r\n")
            await assert_refused(connection, 400, "invalid_http")
        async with connected(server.port) as connection:
            wrong = {**chunked, "content-type": "text/plain"}
            await connection.send(request_head("POST", CHAT, wrong) + chunk(b"abc"))
            assert (await connection.reply()).status == 415
            await connection.send(b"zz\r\n")
            assert await connection.at_end()
        await server.no_connections()
        await assert_serves(server)


async def test_headers_that_do_not_end() -> None:
    async with serve(HURRIED, backend=ScriptedBackend(on_open=answer("a"))) as server:
        connections = [await Connection.open(server.port) for _ in range(20)]
        for connection in connections:
            await connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-slow: ")
        await assert_serves(server)
        for connection in connections:
            await assert_refused(connection, 408, "body_timeout")
            connection.close()


async def test_a_trickle_of_headers_is_no_progress() -> None:
    async with serve(HURRIED) as server, connected(server.port) as connection:
        loop = asyncio.get_running_loop()
        began_at = loop.time()

        async def trickle() -> None:
            await connection.send(b"GET /health HTTP/1.1\r\n")
            for number in range(1000):
                await connection.send(b"x-%d: y\r\n" % number)
                await asyncio.sleep(0.02)

        trickling = asyncio.ensure_future(trickle())
        assert (await connection.reply()).status == 408
        assert loop.time() - began_at < 2
        trickling.cancel()
        await asyncio.wait([trickling])


async def test_a_connection_that_says_nothing_is_closed_without_a_word() -> None:
    async with serve(HURRIED) as server, connected(server.port) as connection:
        assert await connection.at_end()


async def test_time_between_requests_is_no_header_time() -> None:
    backend = ScriptedBackend(on_open=answer("a"))
    async with serve(HURRIED, backend=backend) as server, connected(server.port) as connection:
        for _ in range(2):
            await connection.send(post(chat_body(MODEL)))
            assert (await connection.reply()).status == 200
            await asyncio.sleep(0.4)


async def test_a_long_answer_is_not_cut_by_the_headers_of_the_next_request() -> None:
    """Pipelined, and late: the reply before stays whole, then the connection is over."""
    backend = ScriptedBackend()
    async with serve(HURRIED, backend=backend) as server, connected(server.port) as connection:
        await connection.send(post(chat_body(MODEL, stream=True)) + b"GET /health HTTP/1.1\r\nx-slow: ")
        engine = await backend.got(0)
        await asyncio.sleep(0.4)
        engine.say("a")
        engine.end()
        _, stream = await connection.streamed()
        assert stream.done
        assert await connection.at_end()


@pytest.mark.parametrize("whole", [False, True])
async def test_headers_that_are_too_large(whole: bool) -> None:
    async with serve() as server, connected(server.port) as connection:
        head = b"GET /health HTTP/1.1\r\nhost: x\r\n"
        for number in range(200):
            head += b"x-%d: %b\r\n" % (number, b"y" * 1000)
        try:
            await connection.send(head + (b"\r\n" if whole else b"x-last: "))
            reply = await connection.reply()
        except ConnectionError:
            return  # it was refused while still sending
        assert reply.status in ((200, 431) if whole else (431,))


@pytest.mark.parametrize(("chosen", "ours"), [("auto", True), ("h11", False)])
def test_a_uvicorn_of_somebody_else_speaks_it_too_unless_told_otherwise(chosen: Any, ours: bool) -> None:
    config = uvicorn.Config(lambda: None, http=chosen)
    config.load()
    install(config, 3.0)
    assert (getattr(config.http_protocol_class, "func", None) is ServerProtocol) is ours
    install(None, 3.0)


async def test_pipelined_requests_are_answered_in_order() -> None:
    backend = ScriptedBackend(on_open=answer("a"))
    async with serve(backend=backend) as server, connected(server.port) as connection:
        requests = [post(chat_body(MODEL), headers={"x-request-id": f"r{number}"}) for number in range(5)]
        await connection.send(b"".join(requests))
        for number in range(5):
            reply = await connection.reply()
            assert (reply.status, reply.headers["x-request-id"]) == (200, f"r{number}")
        await server.at_rest()


async def test_an_answer_to_the_older_protocol_ends_with_the_connection() -> None:
    """HTTP/1.0 knows no chunks."""
    async with (
        serve(backend=ScriptedBackend(on_open=answer("a", "b"))) as server,
        connected(server.port) as connection,
    ):
        request = post(chat_body(MODEL, stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0")
        await connection.send(request)
        head = await connection.head()
        assert "transfer-encoding" not in head.headers
        assert head.headers["connection"] == "close"
        body = b""
        while data := await connection.read_some():
            body += data
        assert body.startswith(b"data: {")
        assert body.endswith(b"data: [DONE]\n\n")


async def test_who_asks_first_is_told_to_go_on() -> None:
    async with (
        serve(backend=ScriptedBackend(on_open=answer("a"))) as server,
        connected(server.port) as connection,
    ):
        head, separator, body = post(chat_body(MODEL), headers={"expect": "100-continue"}).partition(
            b"\r\n\r\n"
        )
        await connection.send(head + separator)
        assert (await connection.head()).status == 100
        await connection.send(body)
        assert (await connection.reply()).status == 200


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    async with serve() as server, connected(server.port) as connection:
        await connection.send(request_head("HEAD", "/health/live", {"host": "x"}))
        reply = await connection.reply(has_body=False)
        assert (reply.status, int(reply.headers["content-length"]) > 0) == (200, True)
        await connection.send(request_head("GET", "/health/live", {"host": "x"}))
        assert (await connection.reply()).json() == {"status": "alive"}


async def test_a_wish_to_speak_something_else_is_overheard() -> None:
    async with serve() as server, connected(server.port) as connection:
        wish = {"host": "x", "connection": "upgrade", "upgrade": "h2c"}
        await connection.send(request_head("GET", "/health/live", wish))
        assert (await connection.reply()).json() == {"status": "alive"}


class Client(asyncio.Transport):
    """What the protocol writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.raw += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class App:
    """An application that names an endpoint, and answers with what it was told."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.cycles: list[Cycle] = []
        self.cycle_endpoints = {b"/straight": self}

    async def serve(self, cycle: Cycle) -> None:
        self.cycles.append(cycle)
        cycle.reply(b"", b"straight")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await send_bytes(send, 200, [(b"content-length", b"4")], b"asgi")


async def heard(request: bytes, root_path: str = "") -> tuple[App, Client]:
    app, client, state = App(), Client(), ServerState()
    config = uvicorn.Config(app, proxy_headers=False, root_path=root_path, log_config=None)
    protocol = ServerProtocol(config, state, {}, asyncio.get_running_loop())
    protocol.connection_made(client)
    protocol.data_received(request)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not state.tasks
    protocol.connection_lost(None)
    return app, client


HEAD = b"POST /straight HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("request_", "root_path"),
    [
        (HEAD.replace(b"POST", b"GET"), ""),
        (HEAD.replace(b"straight", b"straight/"), ""),
        (HEAD.replace(b"straight", b"straight?a"), ""),
        (HEAD.replace(b"straight", b"str%61ight"), ""),
        (HEAD, "/below"),
    ],
)
async def test_only_a_post_of_exactly_its_path_goes_straight_to_an_endpoint(
    request_: bytes, root_path: str
) -> None:
    app, client = await heard(HEAD + b"\r\n")
    assert (len(app.cycles), app.scopes) == (1, [])
    assert client.raw.endswith(b"straight")
    app, client = await heard(request_ + b"\r\n", root_path)
    assert (app.cycles, len(app.scopes)) == ([], 1)
    assert client.raw.endswith(b"asgi")


async def test_repeated_headers_stand_in_the_scope_as_they_came() -> None:
    fields = b"A: 1\r\nb: 2\r\na: 3\r\nB: 4\r\nc: 5\r\n"
    app, _ = await heard(HEAD.replace(b"straight", b"other") + fields + b"\r\n")
    pairs = [(b"host", b"x"), (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"4"), (b"c", b"5")]
    assert app.scopes[0]["headers"] == pairs
    app, _ = await heard(HEAD + fields + b"\r\n")
    assert app.cycles[0].headers == {b"host": b"x", b"a": b"1", b"b": b"2", b"c": b"5"}


@pytest.mark.parametrize("how", [b"", b"connection: keep-alive\r\n", b"proxy-connection: keep-alive\r\n"])
async def test_the_older_protocol_is_known_however_it_asks_to_be_kept(how: bytes) -> None:
    app, client = await heard(HEAD.replace(b"1.1", b"1.0").replace(b"straight", b"other") + how + b"\r\n")
    assert app.scopes[0]["http_version"] == "1.0"
    assert client.closed
    app, client = await heard(HEAD.replace(b"straight", b"other") + how + b"\r\n")
    assert app.scopes[0]["http_version"] == "1.1"
    assert not client.closed
