"""Starting and ending a vLLM server, with programs that stand in for it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from llm_runtime.core.clock import SystemClock
from llm_runtime.core.errors import BackendUnavailable, ConfigError
from llm_runtime.engines.base import BackendState
from llm_runtime.engines.child_backend import EngineHost
from llm_runtime.engines.config import SupervisionConfig, VllmConfig
from llm_runtime.engines.upstream import Address, Upstream
from llm_runtime.engines.vllm.command import ServedModel
from llm_runtime.engines.vllm.server import VllmBackend

PROGRAM = Path(__file__).with_name("programs") / "fake_server.py"
ONCE = SupervisionConfig(max_restarts=0, restart_backoff_s=0.01)


def make_backend(state_dir: Path, mode: str = "ok", port: int | None = None) -> VllmBackend:
    config = VllmConfig(
        command=f"{sys.executable} {PROGRAM}",
        port=port,
        extra_arguments="--seed 7",
        start_timeout_s=30,
    )
    environ = {**os.environ, "FAKE_MODE": mode}
    return VllmBackend(
        config,
        EngineHost(ONCE, SystemClock(), environ, state_dir),
        num_slots=3,
        model=ServedModel("m", "org/weights"),
        model_created=1,
    )


@asynccontextmanager
async def started(backend: VllmBackend) -> AsyncIterator[VllmBackend]:
    try:
        await backend.start(lambda: None)
        yield backend
    finally:
        await backend.aclose()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("on_port", [False, True])
async def test_it_is_ready_when_this_server_answers(tmp_path: Path, free_port: int, on_port: bool) -> None:
    async with started(make_backend(tmp_path, port=free_port if on_port else None)) as backend:
        assert backend.status.state is BackendState.READY
        assert backend.info.context_tokens == 321, "what the server says of its model"
        assert backend.info.num_slots == 3
    assert os.listdir(tmp_path) == [], "the guard's note is gone with the engine"


async def test_the_key_is_no_argument_and_the_address_is_ours(tmp_path: Path, free_port: int) -> None:
    async with (
        started(make_backend(tmp_path, port=free_port)),
        Upstream(Address(host="127.0.0.1", port=free_port)) as stranger,
    ):
        exchange = stranger.request("GET", "/somewhere")
        await exchange.head()
        (entry,) = orjson.loads(await exchange.read_all())["data"]
    argv = entry["argv"]
    assert argv[:6] == ["--model", "org/weights", "--host", "127.0.0.1", "--port", str(free_port)]
    assert argv[-2:] == ["--seed", "7"]
    assert not any("key" in word for word in argv)


async def test_a_taken_port_is_said_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is taken.*LLM_RUNTIME_VLLM_PORT"):
            async with started(make_backend(tmp_path, port=port)):
                pass


async def test_another_server_on_the_port_is_not_taken_for_ours(tmp_path: Path, free_port: int) -> None:
    with pytest.raises(BackendUnavailable, match="another program answers") as caught:
        async with started(make_backend(tmp_path, "impostor", port=free_port)):
            pass
    assert caught.value.reason == "engine_impostor"


async def test_arguments_that_vllm_refuses_are_no_reason_to_try_again(tmp_path: Path) -> None:
    backend = make_backend(tmp_path, "usage")
    with pytest.raises(ConfigError, match="refused its arguments") as caught:
        async with started(backend):
            pass
    assert "unrecognized arguments: --nonsense" in "\n".join(caught.value.__notes__)


async def test_a_failed_start_is_reported_at_once_with_the_last_lines(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="exited with code 1") as caught:
        async with started(make_backend(tmp_path, "broken")):
            pass
    note = "\n".join(caught.value.__notes__)
    assert "RuntimeError: no such weights" in note
    assert "INFO loading weights" in note
    assert "weights" not in caught.value.message, "clients read the message"


async def test_the_servers_own_count_of_work(tmp_path: Path) -> None:
    async with started(make_backend(tmp_path)) as backend:
        life = backend._life
        assert life is not None
        assert await life.work_done() == 7.0
