"""F01 to F11: what clients send that other servers stumble over, against the whole server; where it matters
what an engine gets, with an upstream that writes it down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from tests.engines.openai.upstreams import asked, fake_upstream, gateway, reply, sing
from tests.engines.upstream.stubs import Peer
from tests.support.http import COMPLETIONS, Connection, Reply, chat_body, connected, get, post
from tests.support.server import MOCK, Served, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

HI = [{"role": "user", "content": "hi"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Served]:
    quick = {**MOCK, "engines.mock.prefill_latency_ms": "0", "engines.mock.decode_latency_ms": "0"}
    async with serve(quick) as served:
        yield served
        await served.at_rest()


async def send(port: int, body: Any, path: str = "/v1/chat/completions", **headers: str) -> Reply:
    async with connected(port) as connection:
        await connection.send(post(body, path, {k.replace("_", "-"): v for k, v in headers.items()}))
        return await connection.reply()


def bad(reply: Reply, param: str | None = None, status: int = 400) -> dict[str, Any]:
    error = reply.error
    assert reply.status == status, error
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param, error
    for leak in ("Traceback", "Error", "pydantic", "detail"):
        assert leak not in error["message"]
    return error


async def well(server: Served, connection: Connection) -> None:
    """An ordinary request on that same connection, and the process besides."""
    await connection.send(post(chat_body("mock", max_tokens=1)))
    assert (await connection.reply()).status == 200
    assert (await get(server.port, "/health")).status == 200


# ---- F01: explicit null in optional parameters

NULLABLE = ("temperature", "top_p", "n", "stop", "seed", "max_tokens", "max_completion_tokens", "logprobs",
            "stream", "stream_options", "presence_penalty", "frequency_penalty", "logit_bias")  # fmt: skip


@pytest.mark.parametrize("names", [NULLABLE, *((name,) for name in NULLABLE)], ids="+".join)
async def test_f01_null_means_absent(server: Served, names: tuple[str, ...]) -> None:
    got = await send(server.port, {"model": "mock", "messages": HI, **dict.fromkeys(names)})
    assert got.status == 200
    assert got.json()["object"] == "chat.completion"
    absent = await send(server.port, {"model": "mock", "messages": HI})
    assert got.json()["choices"] == absent.json()["choices"]


async def test_f01_no_null_becomes_a_word_or_a_zero_upstream() -> None:
    async with fake_upstream() as fake, gateway(fake) as served:
        got = await send(served.port, {"model": "m", "messages": HI, **dict.fromkeys(NULLABLE)})
        assert got.status == 200
        sent = asked(fake.asked[0])
        assert all(sent.get(name) is None for name in NULLABLE)


# ---- F02: content as an array of text parts

PARTS = [
    {"role": "system", "content": [{"type": "text", "text": "Answer in one word."}]},
    {"role": "user", "content": [{"type": "text", "text": "Sky "}, {"type": "text", "text": "colour?"}]},
]


async def test_f02_text_parts_are_taken_on_every_role_and_nothing_is_lost(server: Served) -> None:
    got = (await send(server.port, {"model": "mock", "messages": PARTS, "seed": 1})).json()
    whole = [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Sky colour?"}]
    same = (await send(server.port, {"model": "mock", "messages": whole, "seed": 1})).json()
    assert got["usage"]["prompt_tokens"] == same["usage"]["prompt_tokens"] > 5
    assert got["choices"] == same["choices"]
    tail = [
        {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
        {"role": "tool", "tool_call_id": "t", "content": [{"type": "text", "text": "b"}]},
        {"role": "developer", "content": [{"type": "text", "text": "c"}]},
    ]
    async with fake_upstream() as fake, gateway(fake) as served:
        assert (await send(served.port, {"model": "m", "messages": [*PARTS, *tail]})).status == 200
        assert asked(fake.asked[0])["messages"] == [*PARTS, *tail]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([], "messages[0].content"),
        ([{"type": "text"}], "messages[0].content[0].text"),
        ([{"type": "image_url", "image_url": {"url": "data:,"}}], "messages[0].content[0]"),
        (7, "messages[0].content"),
    ],
    ids=["empty", "without text", "picture", "number"],
)
async def test_f02_what_is_no_text_is_refused_by_its_place(
    server: Served, content: Any, param: str, stream: bool
) -> None:
    bad(
        await send(
            server.port, chat_body("mock", messages=[{"role": "user", "content": content}], stream=stream)
        ),
        param,
    )


# ---- F04: empty, missing or mistyped messages

NO_MESSAGES: list[tuple[str, dict[str, Any], str]] = [
    ("empty", {"messages": []}, "messages"),
    ("absent", {}, "messages"),
    ("null", {"messages": None}, "messages"),
    ("a string", {"messages": "hi"}, "messages"),
    ("an object", {"messages": {}}, "messages"),
    ("a null inside", {"messages": [None]}, "messages[0]"),
    ("no role", {"messages": [{"content": "hi"}]}, "messages[0].role"),
    ("an unknown role", {"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
]


@pytest.mark.parametrize(("name", "fields", "param"), NO_MESSAGES, ids=[case[0] for case in NO_MESSAGES])
async def test_f04_messages_that_are_none(name: str, fields: dict[str, Any], param: str) -> None:
    """Before routing errors; nothing is queued, charged to the limit or sent upstream."""
    limit = {"admission.request_rate_limit_per_s": "0.001", "admission.request_rate_limit_burst": "1"}
    async with fake_upstream() as fake, gateway(fake, limit) as served:
        for stream in (False, True):
            for model in ("m", "no-such-model"):
                bad(await send(served.port, {"model": model, "stream": stream, **fields}), param)
        assert fake.asked == []
        assert served.recorder.accepted_ids == []
        assert served.recorder.rejections == []
        assert (await send(served.port, chat_body("m"))).status == 200, "the only token is still there"


# ---- F05: a body that cannot be read

GOOD = orjson.dumps(chat_body("mock", max_tokens=1))


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (GOOD, {"content_type": ""}, 415),
        (GOOD, {"content_type": "application/x-www-form-urlencoded"}, 415),
        (GOOD, {"content_type": "text/plain"}, 415),
        (GOOD, {"content_type": "application/json; charset=utf-8"}, 200),
        (b'{"model":', {}, 400),
        (b"", {}, 400),
        (b'"hello"', {}, 400),
        (b"[1,2]", {}, 400),
        (bytes.fromhex("7b2261223a22fffe227d"), {}, 400),
        (GOOD, {"content_encoding": "gzip"}, 400),
    ],
    ids=["1 none", "1 form", "2", "3", "4", "5", "6 text", "6 list", "7", "8"],
)
async def test_f05_unreadable_bodies(
    server: Served, body: bytes, headers: dict[str, str], status: int
) -> None:
    for _ in range(2):
        got = await send(server.port, body, **headers)
        assert got.status == status
        if status != 200:
            bad(got, status=status)


# ---- F07: an unpaired surrogate

SURROGATES = [
    ("content", rb'"messages":[{"role":"user","content":"x\ud800y"}]', b'"mock"'),
    ("a part", rb'"messages":[{"role":"user","content":[{"type":"text","text":"\ud800"}]}]', b'"mock"'),
    ("stop", rb'"messages":[{"role":"user","content":"a"}],"stop":["\ud800"]', b'"mock"'),
    ("a tool message", rb'"messages":[{"role":"tool","tool_call_id":"a","content":"\ud800"}]', b'"mock"'),
    ("user", rb'"messages":[{"role":"user","content":"a"}],"user":"\ud800"', b'"mock"'),
    ("model", rb'"messages":[{"role":"user","content":"a"}]', rb'"\ud800"'),
]


@pytest.mark.parametrize(("name", "members", "model"), SURROGATES, ids=[case[0] for case in SURROGATES])
async def test_f07_a_lone_surrogate_is_refused(
    server: Served, name: str, members: bytes, model: bytes
) -> None:
    async with connected(server.port) as connection:
        errors = []
        for stream in (b"false", b"true"):
            await connection.send(post(b'{"model":%b,%b,"stream":%b}' % (model, members, stream)))
            errors.append(bad(await connection.reply()))
        assert errors[0] == errors[1]
        await well(server, connection)


async def test_f07_a_pair_is_one_character_and_the_refusals_line_is_utf8(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with fake_upstream() as fake, gateway(fake, {"telemetry.log_level": "info"}) as served:
        body = rb'{"model":"m","messages":[{"role":"user","content":"\ud83d\ude00"}]}'
        assert (await send(served.port, body)).status == 200
        assert asked(fake.asked[0])["messages"][0]["content"] == "\U0001f600"
        bad(await send(served.port, body.replace(rb"\ude00", b"")))
    out, err = capfd.readouterr()
    lines = [orjson.loads(line) for line in (out + err).splitlines() if line.startswith("{")]
    assert any(line["event"] == "request.refused" and line["status"] == 400 for line in lines)


# ---- F08: numbers

NUMBERS = {
    "temperature": ("NaN", "Infinity", "1e999", "-0.1", "2.5", '"0.7"', "true", '"nan"'),
    "top_p": ("1.5", "NaN"),
    "presence_penalty": ("-3",),
    "max_tokens": ("-1", "1.5", "1e18"),
    "n": ("0", "-1", "100000"),
    "seed": ("9223372036854775808", "1.5"),
    "top_logprobs": ("21",),
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", COMPLETIONS])
@pytest.mark.parametrize(("name", "values"), NUMBERS.items(), ids=NUMBERS)
async def test_f08_numbers_out_of_range(
    server: Served, name: str, values: tuple[str, ...], path: str
) -> None:
    text = b'"prompt":"hi"' if path == COMPLETIONS else b'"messages":[{"role":"user","content":"hi"}]'
    if name == "top_logprobs" and path == COMPLETIONS:
        name, values = "logprobs", ("21", "-1")
    async with connected(server.port) as connection:
        for value in values:
            await connection.send(
                post(b'{"model":"mock",%b,"%b":%b}' % (text, name.encode(), value.encode()))
            )
            bad(await connection.reply())
        await well(server, connection)


@pytest.mark.parametrize(
    "fields",
    [{"top_p": 0}, {"seed": -1}, {"max_tokens": 2147483647, "stop": ["a"]}, {"max_tokens": 0}],
    ids=str,
)
async def test_f08_the_ends_of_the_ranges_are_served(server: Served, fields: dict[str, Any]) -> None:
    """More tokens than the context has are capped; none at all count as one."""
    assert (await send(server.port, chat_body("mock", **fields))).status == 200


# ---- F10: the cap

CAPS: list[tuple[str, dict[str, Any], int, str]] = [
    ("a", {"max_completion_tokens": 5}, 5, "length"),
    ("b", {"max_tokens": 5}, 5, "length"),
    ("c", {"max_tokens": 50, "max_completion_tokens": 5}, 5, "length"),
    ("d", {"max_tokens": 5, "max_completion_tokens": 50}, 50, "length"),
    ("e", {"ignore_eos": True}, 512, "length"),
    ("f", {"max_tokens": 0}, 1, "length"),
]


@pytest.mark.parametrize(("name", "fields", "num_tokens", "reason"), CAPS, ids=[case[0] for case in CAPS])
async def test_f10_the_cap_holds_and_the_reason_is_true(
    server: Served, name: str, fields: dict[str, Any], num_tokens: int, reason: str
) -> None:
    """The newer field wins; without any the server's own cap; none at all counts as one."""
    fields = {"ignore_eos": True, **fields}
    plain = (await send(server.port, chat_body("mock", **fields))).json()
    assert plain["choices"][0]["finish_reason"] == reason
    assert plain["usage"]["completion_tokens"] == num_tokens
    async with connected(server.port) as connection:
        options = {"include_usage": True}
        await connection.send(post(chat_body("mock", stream=True, stream_options=options, **fields)))
        _, stream = await connection.streamed()
    assert stream.chunks[-2]["choices"][0]["finish_reason"] == reason
    assert stream.chunks[-1]["usage"] == plain["usage"]


async def test_f10_g_an_answer_that_ends_by_itself_says_stop(server: Served) -> None:
    for number in range(20):
        messages = [{"role": "user", "content": f"question {number}"}]
        got = (await send(server.port, chat_body("mock", messages=messages, max_tokens=200))).json()
        if got["choices"][0]["finish_reason"] == "stop":
            assert got["usage"]["completion_tokens"] < 200
            return
    raise AssertionError("no answer ended by itself")


async def test_f10_either_spelling_reaches_an_upstream_under_its_own_name() -> None:
    async with fake_upstream() as fake, gateway(fake) as served:
        for fields in ({"max_tokens": 5}, {"max_completion_tokens": 5}):
            assert (await send(served.port, chat_body("m", **fields))).status == 200
            sent = asked(fake.asked[-1])
            assert {k: v for k, v in sent.items() if k.startswith("max_")} == fields


# ---- F11: an unknown model


@pytest.mark.parametrize("stream", [False, True])
async def test_f11_an_unknown_model_is_nobodys(stream: bool) -> None:
    async with fake_upstream(models=["MODEL"]) as fake, gateway(fake) as served:
        for model in ("no-such-model", " MODEL", "model"):  # a, e
            error = bad(await send(served.port, chat_body(model, stream=stream)), "model", 404)
            assert error["code"] == "model_not_found"
        for odd in ("", None):  # b, c
            bad(await send(served.port, chat_body("x", stream=stream) | {"model": odd}), "model")
        bad(await send(served.port, {"messages": HI, "stream": stream}), "model")  # d
        got = await get(served.port, "/v1/models/no-such-model")  # f
        assert (got.status, got.error["code"]) == (404, "model_not_found")
        assert fake.asked == []
        text = (await get(served.port, "/metrics?format=prometheus")).body.decode()
        assert "no-such-model" not in text


async def test_f11_g_an_alias_is_the_only_name_clients_see() -> None:
    failing = False

    async def answer(peer: Peer, request: bytes) -> None:
        assert asked(request)["model"] == "org/real-7b"
        if failing:
            await peer.send(reply({"error": {"message": "org/real-7b is odd"}}, "500 Oops"))
        else:
            await sing(peer, request)

    settings = {"engines.openai.models": "chat=org/real-7b"}
    async with fake_upstream(answer, models=["org/real-7b"]) as fake, gateway(fake, settings) as served:
        plain = await send(served.port, chat_body("chat"))
        assert plain.json()["model"] == "chat"
        async with connected(served.port) as client:
            await client.send(post(chat_body("chat", stream=True)))
            _, stream = await client.streamed()
        assert {event["model"] for event in stream.events} == {"chat"}
        failing = True
        refused = await send(served.port, chat_body("chat"))
        assert refused.status == 502
        seen = refused.body + (await get(served.port, "/metrics?format=prometheus")).body
        assert b"real-7b" not in seen
        assert b'model="chat"' in seen
