"""What `slots.py` relies on, asked of the real engine: it may change with any release."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from llm_runtime.core.lease import Lease
from llm_runtime.engines.assets import ModelStore
from llm_runtime.engines.config import BUILTIN_MODEL
from llm_runtime.engines.llama_cpp.command import LaunchParameters
from llm_runtime.engines.llama_cpp.slots import TAG_FIELD, TAGS, SlotWatch
from llm_runtime.engines.process import EngineProcess, ProcessSpec, child_environment, scratch_directory
from llm_runtime.engines.upstream import Address, Exchange, Upstream
from tests.engines.upstream.stubs import turns_until

pytestmark = pytest.mark.engine

NUM_SLOTS = 4
CHAT = {"messages": [{"role": "user", "content": "Tell me a long story."}], "temperature": 0}
LONG_PROMPT = {"messages": [{"role": "user", "content": "alpha beta gamma " * 500}], "max_tokens": 5}
STREAM = {"stream": True, "return_progress": True, "ignore_eos": True}


@contextlib.asynccontextmanager
async def engine(state_dir: Path) -> AsyncIterator[Upstream]:
    scratch = scratch_directory()
    model = ModelStore(os.environ).ensure(BUILTIN_MODEL)
    command = LaunchParameters(model, "m", NUM_SLOTS, 2048, 1, 16, scratch / "engine.sock").command()
    spec = ProcessSpec("llama.cpp", command, child_environment(os.environ), state_dir, scratch=scratch)
    process = await EngineProcess.start(spec)
    try:
        line = await process.wait_ready(lambda: process.output.line_with_prefix("LISTENING "), 60)
        async with Upstream(Address.parse(line.removeprefix("LISTENING "))) as upstream:
            yield upstream
    finally:
        await process.stop(0)


def send(upstream: Upstream, body: dict[str, Any], path: str = "/v1/chat/completions") -> Exchange:
    return upstream.request("POST", path, orjson.dumps(body))


async def slots(upstream: Upstream) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = orjson.loads(await upstream.request("GET", "/slots").read_all())
    return rows


async def busy_slots(upstream: Upstream) -> list[int]:
    """The tag of each busy slot."""
    return [row["params"][TAG_FIELD] for row in await slots(upstream) if row["is_processing"]]


async def test_tag_changes_nothing_in_the_answer(tmp_path: Path) -> None:
    async with engine(tmp_path) as upstream:
        answers = set()
        for tag in ({}, {TAG_FIELD: TAGS[0]}, {TAG_FIELD: TAGS[-1]}, {TAG_FIELD: 2**31 - 1}):
            exchange = send(upstream, {**CHAT, **tag, "max_tokens": 20, "cache_prompt": False})
            reply = orjson.loads(await exchange.read_all())
            answers.add(reply["choices"][0]["message"]["content"])
        assert len(answers) == 1


@pytest.mark.parametrize(
    ("path", "body", "num_slots"),
    [
        ("/v1/chat/completions", CHAT, 1),
        ("/v1/chat/completions", {**CHAT, "n": 3}, 3),
        ("/v1/completions", {"prompt": "Once upon"}, 1),
        ("/v1/completions", {"prompt": ["Once", "upon", "a time"]}, 3),
        ("/v1/completions", {"prompt": ["Once", "upon"], "n": 2}, 4),
    ],
    ids=["chat", "n", "completion", "list of prompts", "list of prompts with n"],
)
async def test_first_byte_means_in_all_its_slots_with_the_tag(
    tmp_path: Path, path: str, body: dict[str, Any], num_slots: int
) -> None:
    async with engine(tmp_path) as upstream:
        exchange = send(upstream, {**body, **STREAM, TAG_FIELD: 77, "max_tokens": 500}, path)
        await exchange.head()
        assert await busy_slots(upstream) == [77] * num_slots
        await cancel(upstream, 77, exchange)
        assert await busy_slots(upstream) == []


async def cancel(upstream: Upstream, tag: int, exchange: Exchange) -> None:
    """Cancels by `SlotWatch` and waits for the lease."""
    freed = asyncio.Event()
    watch = SlotWatch(upstream)
    running = asyncio.create_task(watch.run())
    try:
        watch.cancel(tag, exchange, Lease("r", "replica", 1, 0.0, lambda _: freed.set()))
        async with asyncio.timeout(20):
            await freed.wait()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("moment", ["sent", "first byte", "prefill", "decode"])
async def test_cancelled_work_leaves_its_slot_long_before_its_end(tmp_path: Path, moment: str) -> None:
    """Beside a neighbour, who goes on: 1,500 tokens of prompt would take ten seconds and more."""
    async with engine(tmp_path) as upstream:
        neighbour = send(upstream, {**CHAT, **STREAM, TAG_FIELD: 1, "max_tokens": 1500})
        await neighbour.head()
        work = {**CHAT, "max_tokens": 1500} if moment == "decode" else LONG_PROMPT
        exchange = send(upstream, {**work, **STREAM, TAG_FIELD: 2})
        if moment == "sent":
            await turns_until(lambda: exchange.was_sent)
        elif moment == "first byte":
            await exchange.head()
        else:
            await until_text(exchange, b'"content":"' if moment == "decode" else b'"processed":64')
        begun = asyncio.get_running_loop().time()
        await cancel(upstream, 2, exchange)
        assert asyncio.get_running_loop().time() - begun < 3  # on a loaded machine; else 0.5
        assert await busy_slots(upstream) == [1]
        assert not neighbour.ended
        neighbour.abort()


async def until_text(exchange: Exchange, text: bytes) -> None:
    seen = b""
    while text not in seen:
        part = await exchange.read()
        assert part is not None
        seen += part


async def test_slot_is_idle_when_the_last_byte_of_an_answer_is_there(tmp_path: Path) -> None:
    async with engine(tmp_path) as upstream:
        for body in (CHAT, {**CHAT, "n": 3}):
            await send(upstream, {**body, "stream": True, "max_tokens": 5}).read_all()
            assert await busy_slots(upstream) == []
