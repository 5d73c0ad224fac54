"""`InProcessStream` over an engine whose every move the test makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from llm_runtime.core.clock import SystemClock
from llm_runtime.core.errors import BackendCrashed, BackendError, InvalidRequest
from llm_runtime.core.lease import Lease, LeaseState
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines.base import Finished, Work
from llm_runtime.engines.vllm.core import Tally
from llm_runtime.engines.vllm.inprocess import InProcessLife
from llm_runtime.engines.vllm.stream import InProcessStream
from tests.engines.driving import make_request
from tests.engines.upstream.stubs import turns_until

END = "data: [DONE]\n\n"


def event(text: str = "", finish: str | None = None, index: int = 0) -> str:
    choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    body = {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }
    return f"data: {orjson.dumps(body).decode()}\n\n"


def usage(prompt: int, completion: int) -> str:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return f"data: {orjson.dumps({'choices': [], 'usage': counts}).decode()}\n\n"


@dataclass
class FakeCore:
    """script: what the generator yields, in order; None waits for `go_on`; an exception is raised.

    dropped: what was to be dropped; `confirm` lets it be. closed: how often a generator was ended early.
    """

    script: list[str | Exception | None]
    dead: bool = False
    refusal: Exception | None = None
    body: bytes | None = None
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    confirm: asyncio.Event = field(default_factory=asyncio.Event)
    dropped: list[tuple[str, ...]] = field(default_factory=list)
    num_yielded: int = 0
    closed: int = 0
    num_kills: int = 0

    async def ask(self, kind: EndpointKind, body: Mapping[str, Any], tally: Tally) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return self.body if self.body is not None else self.events(tally)

    async def events(self, tally: Tally) -> AsyncGenerator[str, None]:
        tally.prompt_tokens["chatcmpl-x"] = 7
        try:
            for item in self.script:
                if item is None:
                    await self.go_on.wait()
                elif isinstance(item, Exception):
                    raise item
                else:
                    tally.completion_tokens += 1
                    self.num_yielded += 1
                    yield item
        except (GeneratorExit, asyncio.CancelledError):
            self.closed += 1
            raise

    async def drop(self, names: tuple[str, ...]) -> None:
        self.dropped.append(names)
        await self.confirm.wait()

    def forget(self, request_name: str) -> None: ...

    def kill(self) -> None:
        self.num_kills += 1


class Life:
    def __init__(self, core: FakeCore) -> None:
        self.core: Any = core
        self.num_ended = 0
        self.num_progressed = 0

    def now(self) -> float:
        return 5.0

    def first_token(self, stream: InProcessStream, *, whole: bool) -> float:
        return 5.0

    def progressed(self) -> None:
        self.num_progressed += 1

    def ended(self, stream: InProcessStream) -> None:
        self.num_ended += 1


@dataclass
class Rig:
    core: FakeCore
    life: Life
    stream: InProcessStream
    freed: list[Lease]

    async def all(self) -> bytes:
        """Pulls to the end as a response writer does."""
        whole = b""
        while self.stream.finished is None:
            item = await self.stream.__anext__()
            assert isinstance(item, bytes)
            whole += item
        return whole


def rig(*script: str | Exception | None, request: RuntimeRequest | None = None, **options: Any) -> Rig:
    core = FakeCore(list(script), **options)
    life, freed = Life(core), []  # type: ignore[var-annotated]
    request = request or make_request("m", stream=True, include_usage=True)
    lease = Lease(request.id, "r0", 1, 0.0, freed.append)
    return Rig(core, life, InProcessStream(request, lease, life, with_priority=False), freed)


async def test_a_stream_to_its_end() -> None:
    it = rig(event("Hel"), event("lo", "stop"), usage(7, 2), END)
    raw = await it.all()
    assert raw.endswith(b"data: [DONE]\n\n")
    assert b"Hel" in raw
    assert it.stream.finished is not None
    assert it.stream.finished.reason == "stop"
    assert it.stream.finished.usage.completion_tokens == 2
    assert it.stream.first_token_at == 5.0
    await turns_until(lambda: bool(it.freed))
    assert (len(it.freed), it.life.num_ended, it.core.dropped) == (1, 1, [])
    assert isinstance(await it.stream.__anext__(), Finished)
    with pytest.raises(StopAsyncIteration):
        await it.stream.__anext__()


async def test_nothing_is_asked_before_the_first_pull() -> None:
    it = rig(event("x"))
    await asyncio.sleep(0)
    assert it.stream.task is None
    it.stream.cancel()
    assert (len(it.freed), it.life.num_ended) == (1, 1)
    with pytest.raises(StopAsyncIteration):
        await it.stream.__anext__()


async def test_a_poke_returns_a_pending_pull_and_loses_nothing() -> None:
    it = rig(None, event("a", "stop"), usage(7, 1), END)
    it.stream.poke()
    assert await it.stream.__anext__() == b""
    pull = asyncio.ensure_future(it.stream.__anext__())
    await asyncio.sleep(0)
    it.stream.poke()
    assert await pull == b""
    it.core.go_on.set()
    assert b'"a"' in await it.all()


async def test_a_cancelled_stream_is_free_when_the_engine_has_confirmed() -> None:
    it = rig(event("a"), None)
    await it.stream.__anext__()
    it.stream.cancel()
    it.stream.cancel()
    assert it.stream.lease.state is LeaseState.CANCELLING
    await turns_until(lambda: bool(it.core.dropped))
    assert it.core.dropped == [(f"chatcmpl-{it.stream.lease.request_id}",)]
    assert it.core.closed == 1
    assert it.freed == []
    spent = it.stream.spent()
    assert (spent.prompt_tokens, spent.completion_tokens, spent.estimated) == (7, 1, False)
    it.core.confirm.set()
    await turns_until(lambda: bool(it.freed))
    assert (len(it.freed), it.life.num_ended) == (1, 1)


async def test_a_second_cancellation_while_the_engine_is_asked_does_not_free_it_early() -> None:
    it = rig(event("a"), BackendError("broken"))
    await it.stream.__anext__()
    await turns_until(lambda: bool(it.core.dropped))
    with pytest.raises(BackendError, match="broken"):
        await it.stream.__anext__()
    it.stream.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert it.freed == []
    it.core.confirm.set()
    await turns_until(lambda: bool(it.freed))
    assert len(it.freed) == 1


async def test_a_refusal_is_raised_and_frees() -> None:
    it = rig(refusal=InvalidRequest("no", param="top_k"))
    it.core.confirm.set()
    with pytest.raises(InvalidRequest, match="no"):
        await it.stream.__anext__()
    await turns_until(lambda: bool(it.freed))
    assert len(it.freed) == 1


async def test_what_had_arrived_comes_before_the_error() -> None:
    it = rig(event("a"), RuntimeError("inside"))
    it.core.confirm.set()
    first = await it.stream.__anext__()
    assert isinstance(first, bytes)
    assert b'"a"' in first
    with pytest.raises(BackendError, match="The engine failed") as caught:
        await it.stream.__anext__()
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_an_error_of_a_dead_engine_is_a_crash() -> None:
    it = rig(
        event("a"), f"data: {orjson.dumps({'error': {'message': 'dead', 'code': 500}}).decode()}\n\n", None
    )
    it.core.confirm.set()
    it.core.dead = True
    with pytest.raises(BackendCrashed):
        await it.all()


async def test_a_closed_engine_fails_pending_pulls_and_those_to_come() -> None:
    waiting, idle, fresh = rig(event("a"), None), rig(event("a"), None), rig(event("a"))
    for it in (waiting, idle, fresh):
        it.core.confirm.set()
    await waiting.stream.__anext__()
    await idle.stream.__anext__()
    pull = asyncio.ensure_future(waiting.stream.__anext__())
    await asyncio.sleep(0)
    for it in (waiting, idle, fresh):
        it.stream.fail(BackendError("closed"))
    with pytest.raises(BackendError, match="closed"):
        await pull
    for it in (idle, fresh):
        with pytest.raises(BackendError, match="closed"):
            await it.stream.__anext__()
    await turns_until(lambda: all(it.freed for it in (waiting, idle, fresh)))
    assert [len(it.freed) for it in (waiting, idle, fresh)] == [1, 1, 1]


async def test_nobody_reads_so_nothing_more_is_asked_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_runtime.engines.vllm.stream.MAX_BUFFERED_BYTES", 1000)
    it = rig(*[event("word")] * 100, event("", "stop"), usage(7, 100), END)
    it.stream.poke()
    await it.stream.__anext__()
    for _ in range(300):
        await asyncio.sleep(0)
    assert it.core.num_yielded < 12
    assert (await it.all()).count(b'"word"') == 100
    await turns_until(lambda: bool(it.freed))


async def test_a_full_buffer_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_runtime.engines.vllm.stream.MAX_BUFFERED_BYTES", 1000)
    it = rig(*[event("word")] * 100)
    it.core.confirm.set()
    it.stream.poke()
    await it.stream.__anext__()
    await turns_until(lambda: it.core.num_yielded > 3)
    it.stream.cancel()
    await turns_until(lambda: bool(it.freed))
    assert it.core.closed == 1


async def test_a_plain_reply_is_put_together_and_a_whole_one_is_shaped() -> None:
    request = make_request("m")
    it = rig(event("Hel"), event("lo", "length"), usage(7, 2), END, request=request)
    (body,) = [orjson.loads(await it.all())]
    assert body["choices"][0]["message"]["content"] == "Hello"
    assert it.stream.finished is not None
    assert it.stream.finished.reason == "length"
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    counts = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    whole = orjson.dumps(
        {"id": "e", "object": "chat.completion", "created": 1, "choices": [choice], "usage": counts}
    )
    it = rig(body=whole, request=make_request("m", return_token_ids=True))
    body = orjson.loads(await it.all())
    assert body["model"] == "m"
    assert body["choices"][0]["message"]["content"] == "Hi"
    await turns_until(lambda: bool(it.freed))


async def test_those_in_a_hung_engine_are_told_before_its_process_is_dead() -> None:
    core: Any = FakeCore([event("a"), None])
    orphans: Any = None
    life = InProcessLife(core, orphans, SystemClock(), with_priority=False)
    freed: list[Lease] = []
    request = make_request("m", stream=True)
    stream = life.open(Work(request, Lease(request.id, "r0", 1, 0.0, freed.append)))
    assert b"a" in await stream.__anext__()  # type: ignore[operator]
    pull = asyncio.ensure_future(stream.__anext__())
    await asyncio.sleep(0)
    life.kill()
    async with asyncio.timeout(10):
        with pytest.raises(BackendCrashed, match="hung"):
            await pull
    assert (core.num_kills, freed) == (1, [])
    core.confirm.set()  # a dead engine has nothing any more
    await turns_until(lambda: bool(freed))
