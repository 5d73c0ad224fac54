"""A state machine over what an upstream may send and what a client may do, byte by byte, through the whole
server: whatever is sent whole arrives meaning the same, a cut answer never looks finished, and a client that
leaves closes the connection upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import orjson
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from llm_runtime.core.outcome import Outcome
from tests.engines.openai.upstreams import EVENT_STREAM, Fake, fake_upstream, gateway
from tests.engines.upstream.stubs import END, Peer, chunk
from tests.support.http import Connection, chat_body, post
from tests.support.server import Served
from tests.wire.builders import ROLE

T = TypeVar("T")

SHORT = st.text(alphabet=st.sampled_from('ab "\\\n\r{}[]:,é你😀\u2028\u2029\x85\x00'), max_size=8)
TEXTS = SHORT | SHORT | SHORT | st.just(200_000).map(lambda num: "x" * num)
UNKNOWN = st.dictionaries(
    st.sampled_from(["x_a", "stop_reason", "provider"]), st.none() | st.integers() | TEXTS, max_size=2
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def call(text: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}


DELTAS = st.one_of(
    st.builds(lambda text: {"content": text}, TEXTS),
    st.builds(lambda text: {"reasoning_content": text}, TEXTS),
    st.builds(call, TEXTS),
    st.builds(lambda odd: {"content": "a", **odd}, UNKNOWN),
    st.just({"content": None}),
    st.just({}),
)


def chunk_object(delta: dict[str, Any], finish: str | None = None, **members: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "e1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m",
        "choices": [choice],
        **members,
    }


@st.composite
def framings(draw: st.DrawFn) -> Callable[[dict[str, Any]], bytes]:
    """How an upstream writes an event: everything that the format allows."""
    end, colon = draw(ENDS), draw(st.sampled_from(["data: ", "data:"]))
    several, ascii_only = draw(st.booleans()), draw(st.booleans())
    before = draw(
        st.lists(st.sampled_from([": ping", "event: message", "id: 7", "retry: 10", ""]), max_size=3)
    )

    def frame(body: dict[str, Any]) -> bytes:
        text = json.dumps(body, ensure_ascii=ascii_only, indent=0 if several else None)
        # Only line ends between members can part an event; those inside strings are escaped.
        lines = [line if line != "" else ":" for line in before]
        lines += [colon + line for line in text.split("\n")]
        return (end.join(lines) + end + end).encode()

    return frame


CUTS = st.lists(st.integers(0, 10_000), max_size=4)


def pieces(raw: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({cut % (len(raw) + 1) for cut in cuts} | {0, len(raw)})
    for start, stop in pairwise(places):
        yield raw[start:stop]


def events_of(raw: bytes) -> list[str]:
    """The data of each event, read by the letter of the format."""
    found, data = [], list[str]()
    for line in raw.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif line == "" and data:
            found.append("\n".join(data))
            data = []
    assert not data, "half an event"
    return found


class Harness:
    """One server and one upstream for all examples. Owned by the test, driven between its rules."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.over = asyncio.Event()
        self._stack = AsyncExitStack()
        self.served: Served
        self.fake: Fake

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def limited() -> T:
            async with asyncio.timeout(20):
                return await work

        return self.loop.run_until_complete(limited())

    async def start(self) -> None:
        self.fake = await self._stack.enter_async_context(fake_upstream(self._answer))
        quiet = {"routing.breaker_failures": "none", "routing.max_attempts": "1"}
        self.served = await self._stack.enter_async_context(gateway(self.fake, quiet))

    async def _answer(self, peer: Peer, request: bytes) -> None:
        self.peers.put_nowait(peer)
        await self.over.wait()

    def close(self) -> None:
        self.over.set()
        self.run(self._stack.aclose())
        self.loop.close()


class Exchange(RuleBasedStateMachine):
    """One request, from its first byte to its end at both sides."""

    harness: ClassVar[Harness]

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[dict[str, Any]] = []
        self.got = b""
        self.state = "new"
        self.client: Connection
        self.peer: Peer

    @initialize()
    def begins(self) -> None:
        self.harness.run(self._begin())

    async def _begin(self) -> None:
        harness = self.harness
        harness.over.clear()
        self.num_before = len(harness.served.recorder.records)
        self.client = await Connection.open(harness.served.port)
        await self.client.send(post(chat_body("m", stream=True)))
        self.peer = await harness.peers.get()
        await self.peer.send(EVENT_STREAM, chunk(ROLE))
        self.state = "open"
        self.sent.append({"role": "assistant", "content": ""})
        assert (await self.client.head()).status == 200

    is_open = precondition(lambda self: self.state == "open")

    @is_open
    @rule(delta=DELTAS, framed=framings(), cuts=CUTS)
    def upstream_says(self, delta: dict[str, Any], framed: Callable[..., bytes], cuts: list[int]) -> None:
        self._send(framed(chunk_object(delta)), cuts)
        self.sent.append(delta)

    @is_open
    @rule(comment=st.sampled_from([b": ping\n\n", b":\r\n\r\n", b"event: x\n\n", b"\n\n", b"retry: 1\n\n"]))
    def upstream_says_nothing(self, comment: bytes) -> None:
        self._send(comment, [])

    @is_open
    @rule()
    def client_reads_what_there_is(self) -> None:
        self.harness.run(self._read_all_sent())

    @is_open
    @rule(framed=framings(), cuts=CUTS, usage=st.booleans(), done=st.booleans())
    def upstream_finishes(
        self, framed: Callable[..., bytes], cuts: list[int], usage: bool, done: bool
    ) -> None:
        raw = framed(chunk_object({}, "stop"))
        if usage:
            counts = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
            raw += framed({**chunk_object({}), "choices": [], "usage": counts})
        if done:
            raw += b"data: [DONE]\n\n"
        self._send(raw, cuts)
        self.harness.run(self.peer.send(END))
        self.sent.append({})
        self.state = "finished"

    @is_open
    @rule(
        how=st.sampled_from(["end", "FIN", "RST", "error event", "half an event", "done without a finish"]),
        framed=framings(),
        cut=st.integers(1, 60),
    )
    def upstream_dies(self, how: str, framed: Callable[..., bytes], cut: int) -> None:
        self.harness.run(self._die(how, framed, cut))
        self.state = "died"

    async def _die(self, how: str, framed: Callable[..., bytes], cut: int) -> None:
        peer = self.peer
        if how == "error event":
            await peer.send(chunk(framed({"error": {"message": "boom", "type": "server_error"}})), END)
        elif how == "half an event":
            raw = framed(chunk_object({"content": "lost"}))
            await peer.send(chunk(raw[: len(raw) - 9 - cut]), END)
        elif how == "done without a finish":
            await peer.send(chunk(b"data: [DONE]\n\n"), END)
        elif how == "end":
            await peer.send(END)
        elif how == "FIN":
            peer.close()
        else:
            await self._read_all_sent()  # what a reset overtakes is lost, and nobody's fault
            peer.reset()

    @is_open
    @rule(way=st.sampled_from([Connection.close, Connection.reset, Connection.half_close]))
    def client_leaves(self, way: Callable[[Connection], None]) -> None:
        way(self.client)
        self.state = "left"

    @precondition(lambda self: self.state not in ("new", "open"))
    @rule()
    def nothing_more_happens(self) -> None:
        """What is over stays over."""

    def _send(self, raw: bytes, cuts: list[int]) -> None:
        self.harness.run(self.peer.send(*map(chunk, pieces(raw, cuts))))

    async def _read_all_sent(self) -> None:
        while self._num_events() < len(self.sent):
            piece = await self.client.chunk()
            assert piece, "it ended early"
            self.got += piece

    def _num_events(self) -> int:
        return len(events_of(self.got))

    # ---- what must be true at the end

    def teardown(self) -> None:
        if self.state == "new":
            return
        if self.state == "open":
            self.client.close()
            self.state = "left"
        self.harness.run(self._conclude())

    async def _conclude(self) -> None:
        harness = self.harness
        if self.state == "left":
            await self.peer.closed()
        else:
            while piece := await self.client.chunk():
                self.got += piece
        harness.over.set()
        self.client.close()
        await harness.served.settled(self.num_before + 1)
        await harness.served.at_rest()
        record = harness.served.recorder.records[-1]
        if self.state == "left":
            assert record.outcome is Outcome.CANCELLED
            return
        events = events_of(self.got)
        chunks = [orjson.loads(event) for event in events if event != "[DONE]"]
        if self.state == "finished":
            assert events[-1] == "[DONE]"
            assert events.count("[DONE]") == 1
            assert record.outcome is Outcome.COMPLETED
            assert [one["choices"][0]["finish_reason"] for one in chunks] == [None] * (len(chunks) - 1) + [
                "stop"
            ]
        else:
            assert "[DONE]" not in events
            assert record.outcome is Outcome.FAILED
            error = chunks.pop()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert not any(one["choices"][0]["finish_reason"] for one in chunks)
        assert [one["choices"][0]["delta"] for one in chunks] == self.sent
        assert len({(one["id"], one["created"], one["model"], one["object"]) for one in chunks}) == 1


@pytest.fixture
def harness() -> Iterator[Harness]:
    it = Harness()
    it.run(it.start())
    try:
        yield it
    finally:
        it.close()


def test_whatever_an_upstream_sends_and_a_client_does(harness: Harness) -> None:
    Exchange.harness = harness
    run_state_machine_as_test(
        Exchange,
        settings=settings(
            max_examples=150,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
