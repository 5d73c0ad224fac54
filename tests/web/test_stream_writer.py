"""The commit point: when headers go out, and what an error becomes before and after that."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from llm_runtime.core.errors import BackendError, ClientGone, LLMRuntimeError
from llm_runtime.core.request import EndpointKind
from llm_runtime.web.errors import Header
from llm_runtime.web.stream import STREAM_HEADERS, StreamWriter
from llm_runtime.wire.dialects import dialect_for

END = object()
COMMENT = object()


class Source:
    """What a handle is to the writer: items as scripted. `end`: known with the last bytes."""

    def __init__(self, *items: Any, ends_with_last: bool = True) -> None:
        self._items = list(items)
        self._ends_with_last = ends_with_last
        self.keep_alive_due = False
        self.finished: object | None = None

    async def pull(self, sink: Any = None) -> Any:
        item = self._items.pop(0)
        if isinstance(item, Exception):
            raise item
        if item is COMMENT:
            self.keep_alive_due = True
            return b""
        if not self._items and self._ends_with_last and isinstance(item, bytes):
            self.finished = END
        return item


class Wire:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def sent(self) -> list[bytes]:
        return [m["body"] for m in self.messages if m["type"] == "http.response.body"]

    @property
    def complete(self) -> bool:
        return bool(self.messages) and not self.messages[-1].get("more_body", False)


def head() -> list[Header]:
    return [*STREAM_HEADERS, (b"x-request-id", b"r")]


def writer(wire: Wire) -> StreamWriter:
    return StreamWriter(wire.send, dialect_for(EndpointKind.CHAT), head)


async def test_one_write_per_wake_up_and_the_last_bytes_are_the_last_write() -> None:
    wire = Wire()
    await writer(wire).run(Source(b"a", b"b", b"c"))
    assert wire.messages == [
        {"type": "http.response.start", "status": 200, "headers": head()},
        {"type": "http.response.body", "body": b"a", "more_body": True},
        {"type": "http.response.body", "body": b"b", "more_body": True},
        {"type": "http.response.body", "body": b"c"},
    ]


async def test_an_end_of_its_own_closes_the_reply() -> None:
    wire = Wire()
    await writer(wire).run(Source(b"a", END, ends_with_last=False))
    assert wire.sent == [b"a", b""]
    assert wire.complete


async def test_an_empty_answer_is_a_reply_too() -> None:
    wire = Wire()
    await writer(wire).run(Source(END))
    assert wire.messages[0]["status"] == 200
    assert wire.complete


@pytest.mark.parametrize("items", [(b"a", b"b"), (b"a", b"b", END)])
async def test_a_receipt_is_a_comment_after_the_last_event(items: tuple[Any, ...]) -> None:
    wire = Wire()
    made = StreamWriter(wire.send, dialect_for(EndpointKind.CHAT), head, lambda: b"queue;dur=1")
    await made.run(Source(*items, ends_with_last=END not in items))
    assert b"".join(wire.sent) == b"ab: queue;dur=1\n\n"
    assert wire.complete


async def test_a_wake_up_sends_nothing() -> None:
    wire = Wire()
    await writer(wire).run(Source(b"", b"", b"a"))
    assert wire.sent == [b"a"]


async def test_a_comment_commits_the_headers_and_no_more() -> None:
    wire = Wire()
    source = Source(COMMENT, b"", COMMENT, b"a")
    made = writer(wire)
    await made.run(source)
    assert wire.sent == [b": keep-alive\n\n", b": keep-alive\n\n", b"a"]
    assert not source.keep_alive_due
    assert [m["type"] for m in wire.messages].count("http.response.start") == 1


@pytest.mark.parametrize("error", [BackendError("broke"), LLMRuntimeError("odd")])
async def test_an_error_before_the_headers_sends_nothing(error: LLMRuntimeError) -> None:
    wire = Wire()
    made = writer(wire)
    with pytest.raises(LLMRuntimeError):
        await made.run(Source(b"", error))
    assert not made.started
    assert wire.messages == []


@pytest.mark.parametrize("before", [(b"a",), (COMMENT,)])
async def test_an_error_after_the_headers_is_the_last_event(before: tuple[Any, ...]) -> None:
    wire = Wire()
    with pytest.raises(BackendError):
        await writer(wire).run(Source(*before, BackendError("broke")))
    event = orjson.loads(wire.sent[-1].removeprefix(b"data: "))
    assert event["error"] == {
        "message": "broke",
        "type": "server_error",
        "param": None,
        "code": "backend_error",
    }
    assert wire.complete
    assert not any(b"[DONE]" in body or b"finish_reason" in body for body in wire.sent)


async def test_our_own_fault_says_nothing_of_itself() -> None:
    wire = Wire()
    with pytest.raises(ZeroDivisionError):
        await writer(wire).run(Source(b"a", ZeroDivisionError("PROMPT")))
    assert b"PROMPT" not in wire.sent[-1]
    assert b"internal" in wire.sent[-1]


async def test_nobody_is_told_that_they_have_left() -> None:
    wire = Wire()
    with pytest.raises(ClientGone):
        await writer(wire).run(Source(b"a", ClientGone("left")))
    assert wire.sent == [b"a"]
