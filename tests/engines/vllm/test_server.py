"""The shared suite, and more, on a real vLLM server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
import pytest_asyncio

from llm_runtime.core.errors import BackendCrashed, BackendError, UnsupportedEndpoint
from llm_runtime.core.request import EndpointKind, RuntimeRequest
from llm_runtime.engines import proctable
from llm_runtime.engines.base import BackendState, EngineStream
from llm_runtime.engines.vllm.server import VllmBackend
from tests.engines.conformance import BackendConformance
from tests.engines.driving import freed, make_request, open_batch, read
from tests.engines.vllm.behaviour import VllmBehaviour
from tests.engines.vllm.support import (
    CONFIG,
    ENGINE,
    MODEL,
    NUM_SLOTS,
    SharedEngine,
    host,
    served_model,
    vllm_python,
)

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]


def family(root: int) -> dict[int, str]:
    """The processes of an engine, below its guard."""
    rows = proctable.table()
    return {pid: rows[pid].started for pid in proctable.descendants(root, rows)}


def still_running(processes: dict[int, str]) -> list[int]:
    return [pid for pid, started in processes.items() if proctable.is_running(pid, started)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedEngine[VllmBackend]]:
    state_dir = tmp_path_factory.mktemp("state")
    model = served_model()
    config = replace(CONFIG, python=vllm_python())
    shared = SharedEngine(
        lambda: VllmBackend(config, host(state_dir), num_slots=NUM_SLOTS, model=model, model_created=1)
    )
    try:
        yield shared
    finally:
        processes = family(os.getpid())
        await shared.close()
        assert still_running(processes) == []
        assert os.listdir(state_dir) == [], "the guard's note is gone with the engine"


@pytest_asyncio.fixture(loop_scope="module")
async def backend(shared: SharedEngine[VllmBackend]) -> VllmBackend:
    return await shared.ready()


class TestConformance(BackendConformance):
    engine = ENGINE


class TestBehaviour(VllmBehaviour):
    pass


async def gauge(backend: VllmBackend, name: str) -> int:
    """One of the server's own gauges."""
    life = backend._life
    assert life is not None
    body = await life.get("/metrics")
    assert body is not None
    found = re.search(rb"^vllm:%s\{[^}]*\} (\S+)" % name.encode(), body, re.M)
    assert found is not None
    return int(float(found[1]))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_freed_lease_is_a_sequence_the_server_no_longer_runs(
    backend: VllmBackend, stream: bool
) -> None:
    (companion, opened) = open_batch(
        backend,
        [
            make_request(MODEL, stream=True, max_tokens=1500, ignore_eos=True),
            make_request(MODEL, stream=stream, max_tokens=1500, ignore_eos=True),
        ],
    )
    pull = asyncio.ensure_future(_pull_on(opened.stream))
    async with asyncio.timeout(ENGINE.answer_within_s):
        while await gauge(backend, "num_requests_running") < 2:
            await companion.stream.__anext__()
    pull.cancel()
    opened.cancel()
    await freed(opened, ENGINE.cancel_within_s)
    # The gauge is from the end of a step, so the step under way may be told of first.
    for _ in range(2):
        await companion.stream.__anext__()
    async with asyncio.timeout(5):
        while await gauge(backend, "num_requests_running") > 1:
            await companion.stream.__anext__()
    companion.cancel()
    await freed(companion, ENGINE.cancel_within_s)


async def _pull_on(stream: EngineStream) -> None:
    async for _ in stream:
        pass


HELLO = [{"role": "user", "content": "Say hello."}]
PASSED: list[tuple[EndpointKind, dict[str, Any]]] = [
    (EndpointKind.RESPONSES, {"input": "Say hello.", "max_output_tokens": 5, "temperature": 0}),
    (EndpointKind.MESSAGES, {"messages": HELLO, "max_tokens": 5, "temperature": 0}),
]


def passed(kind: EndpointKind, body: dict[str, Any], *, stream: bool) -> RuntimeRequest:
    request = make_request(MODEL, stream=stream)
    return replace(request, kind=kind, body={"model": MODEL, **body}, num_slots=1)


async def drain(stream: EngineStream) -> bytes:
    whole = b""
    async with asyncio.timeout(ENGINE.answer_within_s):
        while stream.finished is None:
            item = await stream.__anext__()
            assert isinstance(item, bytes)
            whole += item
    return whole


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "body"), PASSED)
async def test_responses_and_messages(
    backend: VllmBackend, kind: EndpointKind, body: dict[str, Any], stream: bool
) -> None:
    (opened,) = open_batch(backend, [passed(kind, body, stream=stream)])
    raw = await drain(opened.stream)
    await freed(opened, ENGINE.cancel_within_s)
    finished = opened.stream.finished
    assert finished is not None
    assert 1 <= finished.usage.completion_tokens <= 5
    assert finished.usage.prompt_tokens > 5
    if stream:
        assert raw.count(b"event: ") > 3
    else:
        assert orjson.loads(raw)["model"] == MODEL
    assert b"ello" in raw


async def test_a_cancelled_response_is_no_longer_run(backend: VllmBackend) -> None:
    body = {"input": "Tell me everything.", "max_output_tokens": 1500}
    (opened,) = open_batch(backend, [passed(EndpointKind.RESPONSES, body, stream=True)])
    async with asyncio.timeout(ENGINE.answer_within_s):
        while not opened.stream.has_token:
            await opened.stream.__anext__()
    opened.cancel()
    await freed(opened, ENGINE.cancel_within_s)
    async with asyncio.timeout(10):
        while await gauge(backend, "num_requests_running") > 0:
            pass  # each look waits for the server


async def test_tokenize(backend: VllmBackend) -> None:
    (opened,) = open_batch(backend, [passed(EndpointKind.TOKENIZE, {"messages": HELLO}, stream=False)])
    answer = orjson.loads(await drain(opened.stream))
    assert answer["count"] == len(answer["tokens"]) > 5
    await freed(opened, ENGINE.cancel_within_s)


async def test_an_endpoint_that_the_model_has_not_is_said_to_be_unsupported(backend: VllmBackend) -> None:
    (opened,) = open_batch(backend, [passed(EndpointKind.EMBEDDINGS, {"input": "x"}, stream=False)])
    with pytest.raises(UnsupportedEndpoint):
        await drain(opened.stream)
    await freed(opened, ENGINE.cancel_within_s)


async def test_the_work_counter_moves_with_work(backend: VllmBackend) -> None:
    life = backend._life
    assert life is not None
    before = await life.work_done()
    (opened,) = open_batch(backend, [make_request(MODEL, max_tokens=5, ignore_eos=True)])
    await read(opened, ENGINE.answer_within_s)
    after = await life.work_done()
    assert before is not None
    assert after is not None
    assert after >= before + 5


async def test_a_killed_server_is_started_again_and_its_children_go_with_it(backend: VllmBackend) -> None:
    life = backend._life
    assert life is not None
    processes = family(life.process.pid)
    server = min(pid for pid, row in proctable.table().items() if row.parent == life.process.pid)
    (opened,) = open_batch(backend, [make_request(MODEL, stream=True, max_tokens=1500, ignore_eos=True)])
    while not opened.stream.has_token:
        await opened.stream.__anext__()
    changed = asyncio.Event()
    backend._on_change = changed.set
    os.kill(server, signal.SIGKILL)
    with pytest.raises(BackendError) as caught:
        await read(opened, ENGINE.answer_within_s)
    assert isinstance(caught.value, BackendCrashed)
    await freed(opened, ENGINE.cancel_within_s)
    states = []
    async with asyncio.timeout(500):
        while backend.status.state is not BackendState.READY or backend._life is life:
            await changed.wait()
            changed.clear()
            states.append(backend.status.state)
            if backend.status.state is BackendState.CRASHED:
                assert still_running(processes) == []
    assert BackendState.CRASHED in states
    assert backend.num_restarts == 1
    (opened,) = open_batch(backend, [make_request(MODEL, max_tokens=3)])
    assert (await read(opened, ENGINE.answer_within_s)).texts[0]
