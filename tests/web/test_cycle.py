"""One request and its reply: what an application may say, and what never reaches the wire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_runtime.web.cycle import Cycle, cycle_of
from tests.dataplane.path import Wire

START = {"type": "http.response.start", "status": 200, "headers": []}


def body(data: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def sized(length: int) -> dict[str, Any]:
    return {**START, "headers": [(b"content-length", b"%d" % length)]}


def cycle(wire: Wire, method: str = "POST", version: str = "1.1") -> Cycle:
    return Cycle(wire, wire.flow, {}, is_head=method == "HEAD", is_old=version == "1.0")


async def test_the_head_waits_for_the_first_piece_of_the_body() -> None:
    wire = Wire()
    made = cycle(wire)
    await made.send(dict(START))
    assert wire.raw == b""
    await made.send(body(b"a", more=True))
    assert wire.raw == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"
    await made.send(body(b"bc"))
    assert wire.raw.endswith(b"2\r\nbc\r\n0\r\n\r\n")
    assert (made.complete, wire.num_answered) == (True, 1)


@pytest.mark.parametrize(
    "header", [(b"x-a", b"b\r\nx-c: d"), (b"x-a", b"b\nx-c: d"), (b"x-a\r\nx-b", b"c"), (b"x-a", b"\0")]
)
async def test_no_header_can_smuggle_another(header: tuple[bytes, bytes]) -> None:
    wire = Wire()
    with pytest.raises(RuntimeError, match="Invalid HTTP header"):
        await cycle(wire).send({**START, "headers": [header]})
    assert wire.raw == b""


@pytest.mark.parametrize("data", [b"abc", b"a"])
async def test_a_length_is_a_promise(data: bytes) -> None:
    made = cycle(Wire())
    await made.send(sized(2))
    with pytest.raises(RuntimeError, match="Content-Length"):
        await made.send(body(data))


@pytest.mark.parametrize("messages", [[body()], [START, START], [START, body(b"a"), body(b"b")]])
async def test_messages_out_of_order(messages: list[dict[str, Any]]) -> None:
    made = cycle(Wire())
    for message in messages[:-1]:
        await made.send(message)
    with pytest.raises(RuntimeError, match="ASGI message"):
        await made.send(messages[-1])


async def test_head_and_no_content_have_no_body() -> None:
    for method, status in (("HEAD", 200), ("GET", 204)):
        wire = Wire()
        made = cycle(wire, method)
        await made.send({**START, "status": status})
        await made.send(body(b"x" if method == "HEAD" else b""))
        assert wire.raw.endswith(b"\r\n\r\n")
        assert b"chunked" not in wire.raw
        assert made.complete


async def test_after_the_client_has_left_nothing_is_written() -> None:
    wire = Wire()
    made = cycle(wire)
    await made.send(dict(START))
    await made.send(body(b"a", more=True))
    wire.gone = True
    made.lost()
    assert made.write(b"b")
    await made.send(body(b"c"))
    assert await made.receive() == {"type": "http.disconnect"}


async def test_a_sender_waits_for_a_slow_reader() -> None:
    wire = Wire()
    made = cycle(wire)
    await made.send(dict(START))
    wire.write_paused = True
    sending = asyncio.ensure_future(made.send(body(b"a")))
    await asyncio.sleep(0)
    assert not sending.done()
    wire.read_on()
    await sending
    assert made.complete


async def test_the_body_as_it_comes() -> None:
    made = cycle(Wire())
    assert made.whole_body() is None
    made.body_arrived(b"a")
    assert made.whole_body() is None
    made.body_arrived(b"b")
    assert await made.receive() == {"type": "http.request", "body": b"ab", "more_body": True}
    waiting = asyncio.ensure_future(made.receive())
    await asyncio.sleep(0)
    made.body_arrived(b"c")
    made.body_ended()
    assert await waiting == {"type": "http.request", "body": b"c", "more_body": False}
    assert made.whole_body() is None


async def test_a_body_that_is_here_needs_no_waiting() -> None:
    made = cycle(Wire())
    made.body_arrived(b"ab")
    made.body_ended()
    assert made.whole_body() == b"ab"
    assert made.whole_body() is None


async def test_leaving_is_told_once_also_when_asked_late() -> None:
    calls: list[int] = []
    made = cycle(Wire())
    made.watch(lambda: calls.append(1))
    made.lost()
    made.lost()
    assert calls == [1]
    made.watch(lambda: calls.append(2))
    assert calls == [1]
    await asyncio.sleep(0)
    assert calls == [1, 2]


@pytest.mark.parametrize("started", [False, True])
async def test_an_application_that_fails(started: bool) -> None:
    wire = Wire()
    made = cycle(wire)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(dict(START))
        if started:
            await send(body(b"a", more=True))
        raise ZeroDivisionError("PROMPT")

    await made.run(app)
    assert b"PROMPT" not in wire.raw
    if started:
        assert wire.closed
        assert not made.complete
    else:
        assert wire.raw.startswith(b"HTTP/1.1 500 ")
        assert made.complete


async def test_only_who_is_next_to_the_wire_gets_the_cycle() -> None:
    """A middleware that rewrites bodies must not be passed by."""
    made = cycle(Wire())

    async def wrapped(message: Any) -> None:
        await made.send(message)

    assert cycle_of({}, made.send) is made
    assert cycle_of({}, wrapped) is None
