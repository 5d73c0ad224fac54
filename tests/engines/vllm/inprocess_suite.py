"""The shared suite, and more, on vLLM's engine inside this process. Run by `test_inprocess.py` with the
Python of vLLM's environment: ours has no vLLM."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from llm_runtime.core.errors import BackendCrashed, BackendError
from llm_runtime.engines import proctable
from llm_runtime.engines.base import BackendState
from llm_runtime.engines.vllm.inprocess import VllmInProcessBackend
from tests.engines.conformance import BackendConformance
from tests.engines.driving import freed, make_request, open_batch, read
from tests.engines.vllm.behaviour import VllmBehaviour
from tests.engines.vllm.support import CONFIG, ENGINE, MODEL, NUM_SLOTS, SharedEngine, host, served_model

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]


def family() -> dict[int, str]:
    """The processes below this one: vLLM's, and the watch over them."""
    rows = proctable.table()
    return {pid: rows[pid].started for pid in proctable.descendants(os.getpid(), rows)}


def still_running(processes: dict[int, str]) -> list[int]:
    return [pid for pid, started in processes.items() if proctable.is_running(pid, started)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[SharedEngine[VllmInProcessBackend]]:
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    state_dir, before = tmp_path_factory.mktemp("state"), family()
    model = served_model()
    shared = SharedEngine(
        lambda: VllmInProcessBackend(
            CONFIG, host(state_dir), num_slots=NUM_SLOTS, model=model, model_created=1
        )
    )
    try:
        yield shared
    finally:
        processes = {pid: started for pid, started in family().items() if pid not in before}
        await shared.close()
        # Multiprocessing keeps a tracker of resources for as long as this process lives.
        names = {pid: _name(pid) for pid in still_running(processes)}
        assert [name for name in names.values() if "resource_tracker" not in name] == []
        assert os.listdir(state_dir) == [], "the note is gone with the engine"


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().replace("\0", " ")
    except OSError:
        return ""


@pytest_asyncio.fixture(loop_scope="module")
async def backend(shared: SharedEngine[VllmInProcessBackend]) -> VllmInProcessBackend:
    return await shared.ready()


class TestConformance(BackendConformance):
    engine = ENGINE


class TestBehaviour(VllmBehaviour):
    pass


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_cancelled_request_used_is_counted_by_token_ids(
    backend: VllmInProcessBackend, stream: bool
) -> None:
    whole = make_request(MODEL, max_tokens=1, prompt="Count for me.")
    (opened,) = open_batch(backend, [whole])
    num_prompt_tokens = (await read(opened, ENGINE.answer_within_s)).finished.usage.prompt_tokens
    request = make_request(MODEL, stream=stream, max_tokens=1500, ignore_eos=True, prompt="Count for me.")
    (companion, opened) = open_batch(
        backend, [make_request(MODEL, stream=True, max_tokens=1500, ignore_eos=True), request]
    )
    pull: asyncio.Future[Any] = asyncio.ensure_future(opened.stream.__anext__())
    async with asyncio.timeout(ENGINE.answer_within_s):
        while opened.stream.spent().completion_tokens < 5:
            await companion.stream.__anext__()
            if stream and pull.done():
                pull = asyncio.ensure_future(opened.stream.__anext__())
    pull.cancel()
    await asyncio.gather(pull, return_exceptions=True)
    opened.cancel()
    await freed(opened, ENGINE.cancel_within_s)
    spent = opened.stream.spent()
    assert not spent.estimated
    assert spent.prompt_tokens == num_prompt_tokens
    assert 5 <= spent.completion_tokens < 1500
    companion.cancel()
    await freed(companion, ENGINE.cancel_within_s)


async def test_a_reader_that_does_not_read_stops_the_engines_stream(
    backend: VllmInProcessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_runtime.engines.vllm.stream.MAX_BUFFERED_BYTES", 2000)
    (companion, opened) = open_batch(
        backend,
        [
            make_request(MODEL, stream=True, max_tokens=60, ignore_eos=True),
            make_request(MODEL, stream=True, max_tokens=60, ignore_eos=True),
        ],
    )
    await opened.stream.__anext__()
    await read(companion, ENGINE.answer_within_s)
    stream: Any = opened.stream
    assert stream._num_buffered < 4000, "60 events are 12,000 bytes"
    answer = await read(opened, ENGINE.answer_within_s)
    assert answer.finished.usage.completion_tokens == 60
    await freed(opened, ENGINE.cancel_within_s)


async def test_the_engine_answers_the_watchdog(backend: VllmInProcessBackend) -> None:
    life = backend._life
    assert life is not None
    before = await life.work_done()
    (opened,) = open_batch(backend, [make_request(MODEL, max_tokens=5, ignore_eos=True)])
    await read(opened, ENGINE.answer_within_s)
    after = await life.work_done()
    assert before is not None
    assert after is not None
    assert after > before


async def test_a_killed_engine_core_is_started_again(backend: VllmInProcessBackend) -> None:
    life = backend._life
    assert life is not None
    (core,) = life.core._processes
    (opened,) = open_batch(backend, [make_request(MODEL, stream=True, max_tokens=1500, ignore_eos=True)])
    while not opened.stream.has_token:
        await opened.stream.__anext__()
    changed = asyncio.Event()
    backend._on_change = changed.set
    os.kill(core.pid, signal.SIGKILL)
    with pytest.raises(BackendError) as caught:
        await read(opened, ENGINE.answer_within_s)
    assert isinstance(caught.value, BackendCrashed)
    await freed(opened, ENGINE.cancel_within_s)
    states = []
    async with asyncio.timeout(500):
        while backend.status.state is not BackendState.READY or backend._life is life:
            await changed.wait()
            changed.clear()
            states.append(backend.status)
    crash = next(status for status in states if status.state is BackendState.CRASHED)
    assert crash.reason is not None
    assert "SIGKILL" in crash.reason
    (opened,) = open_batch(backend, [make_request(MODEL, max_tokens=3)])
    assert (await read(opened, ENGINE.answer_within_s)).texts[0]


async def test_cancelling_the_start_leaves_nothing_and_closing_is_harmless_then(
    tmp_path_factory: pytest.TempPathFactory, shared: SharedEngine[VllmInProcessBackend]
) -> None:
    state_dir, before = tmp_path_factory.mktemp("cancelled"), family()
    backend = VllmInProcessBackend(
        CONFIG, host(state_dir), num_slots=NUM_SLOTS, model=served_model(), model_created=1
    )
    starting = asyncio.ensure_future(backend.start(lambda: None))
    async with asyncio.timeout(300):
        # The birth of a process that a library starts in a thread has no event.
        while not any("spawn_main" in _name(pid) for pid in family() if pid not in before):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await backend.aclose()
    left = {pid: started for pid, started in family().items() if pid not in before}
    assert [pid for pid in still_running(left) if "resource_tracker" not in _name(pid)] == []
    assert os.listdir(state_dir) == []
