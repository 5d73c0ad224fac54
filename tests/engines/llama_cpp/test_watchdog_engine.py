"""A frozen engine: alive for the process table, dead for its users."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from llm_runtime.core.errors import BackendCrashed
from llm_runtime.engines import proctable
from llm_runtime.engines.base import BackendState
from tests.engines.driving import freed, make_request, open_batch, read
from tests.engines.llama_cpp.conftest import MODEL, SUPERVISION, make_backend

pytestmark = pytest.mark.engine


def descendants() -> list[int]:
    """Pids below this process, parents before children."""
    return proctable.descendants(os.getpid(), proctable.table())


async def test_a_frozen_engine_is_restarted_and_its_request_fails_clearly(tmp_path: Path) -> None:
    changed = asyncio.Event()
    before = descendants()  # other tests may have left something that is about to end
    backend = make_backend(tmp_path, supervision=replace(SUPERVISION, stall_timeout_s=2.0))
    await backend.start(changed.set)
    try:
        request = make_request(MODEL, stream=True, max_tokens=1500, ignore_eos=True)
        (opened,) = open_batch(backend, [request])
        await opened.stream.__anext__()
        _guard, engine = (pid for pid in descendants() if pid not in before)
        os.kill(engine, signal.SIGSTOP)
        async with asyncio.timeout(30):
            with pytest.raises(BackendCrashed):
                await read(opened, 30)
            await freed(opened, 5)
            while backend.status.state is not BackendState.READY or backend.num_restarts == 0:
                changed.clear()
                await changed.wait()
        assert backend.num_restarts == 1
        (after,) = open_batch(backend, [make_request(MODEL, max_tokens=3)])
        answer = await read(after, 30)
        assert answer.texts[0]
    finally:
        await backend.aclose()
