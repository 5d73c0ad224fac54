"""`EngineProcess` over real programs: readiness, reasons of failure, ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from llm_runtime.core.errors import BackendUnavailable, ConfigError
from llm_runtime.engines import leftovers, proctable
from llm_runtime.engines.process import (
    EngineProcess,
    ProcessSpec,
    child_environment,
    ensure_port_free,
    scratch_directory,
)
from llm_runtime.engines.upstream import Address, Upstream
from tests.engines.processes import cleaned_up, linux_only, program, wait_ended

Launcher = Callable[..., AbstractAsyncContextManager[EngineProcess]]


@pytest.fixture
def launch(tmp_path: Path) -> Launcher:
    @asynccontextmanager
    async def started(
        *command: str, grace_s: float = 5.0, on_exit: Callable[[int], None] | None = None
    ) -> AsyncIterator[EngineProcess]:
        spec = ProcessSpec("test", command, child_environment(os.environ), tmp_path, grace_s)
        process = await EngineProcess.start(spec, on_exit=on_exit)
        try:
            yield process
        finally:
            await process.stop(0)
            assert os.listdir(tmp_path) == []

    return started


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in directory.iterdir()]


async def pids_of(process: EngineProcess) -> list[int]:
    return list(json.loads(await process.output.line_with_prefix("[")))


@pytest.mark.parametrize(("code", "kind"), [(1, BackendUnavailable), (78, ConfigError)])
async def test_f38_b_failed_start_is_told_at_once_with_code_and_last_lines(
    launch: Launcher, code: int, kind: type[Exception]
) -> None:
    async with launch(*program("fails", str(code), "0.2")) as process:
        begun = time.monotonic()
        with pytest.raises(kind) as failed:
            await process.wait_ready(never, timeout_s=30)
        assert time.monotonic() - begun < 1.2
        report = process.exit_report
        assert report is not None
        assert (report.code, report.lines) == (code, ("loading", "cannot read /secret/weights.gguf"))
        assert "/secret" not in str(failed.value)
        assert "/secret/weights.gguf" in failed.value.__notes__[0]


@pytest.mark.parametrize(("mode", "word"), [(None, "not found"), (0o600, "cannot be executed")])
async def test_f38_f_missing_program_is_a_configuration_error(
    launch: Launcher, tmp_path_factory: pytest.TempPathFactory, mode: int | None, word: str
) -> None:
    target = tmp_path_factory.mktemp("bin") / "llama-server"
    if mode is not None:
        target.touch(mode)
    async with launch(str(target)) as process:
        with pytest.raises(ConfigError, match=word):
            await process.wait_ready(never, timeout_s=30)


async def test_f38_a_end_during_the_probe_beats_an_answer_from_somebody_else(launch: Launcher) -> None:
    """Another server answers the probe; our engine could not bind and is gone."""
    async with launch(*program("fails", "1", "0")) as process:

        async def fooled() -> str:
            await process.wait()
            return "200 OK"

        with pytest.raises(BackendUnavailable, match="exited with code 1"):
            await process.wait_ready(fooled, timeout_s=30)


async def test_f38_c_slow_start_is_given_up_and_the_next_one_may_succeed(launch: Launcher) -> None:
    async with launch(*program("serves", "0", "60")) as process:
        with pytest.raises(BackendUnavailable, match=r"not ready within 0\.3 s") as late:
            await process.wait_ready(lambda: healthy(process), timeout_s=0.3)
        assert late.value.reason == "engine_start_timeout"
        assert process.running
    async with launch(*program("serves", "0", "0.3")) as process:
        await process.wait_ready(lambda: healthy(process), timeout_s=30)
        assert process.alive


async def healthy(process: EngineProcess) -> None:
    """Ready is what /health says, not /v1/models, which answers while the model loads."""
    line = await process.output.line_with_prefix("LISTENING ")
    async with Upstream(Address.parse(line.removeprefix("LISTENING "))) as upstream:
        while True:
            exchange = upstream.request("GET", "/health")
            await exchange.head()
            await exchange.read_all()
            if exchange.status == 200:
                return
            await asyncio.sleep(0.02)


async def test_error_of_the_probe_passes_and_stops_nothing(launch: Launcher) -> None:
    async with launch(*program("family")) as process:
        await pids_of(process)

        async def broken() -> None:
            raise LookupError("probe")

        with pytest.raises(LookupError):
            await process.wait_ready(broken, timeout_s=30)
        assert process.running


async def test_output_beyond_any_pipe_does_not_block_the_engine(launch: Launcher) -> None:
    async with launch(*program("chatty")) as process:
        report = await asyncio.wait_for(process.wait(), 20)
        assert report.code == 0
        assert "DONE" in report.lines


@linux_only
async def test_stop_is_polite_first(launch: Launcher) -> None:
    codes: list[int] = []
    async with launch(*program("family"), on_exit=codes.append) as process:
        pids = await pids_of(process)
        with cleaned_up(pids):
            report = await process.stop()
            assert report.code == 128 + signal.SIGTERM
            assert report.public_reason == "the test engine was ended by SIGTERM"
            assert codes == [report.code]
            assert [pid for pid in pids if proctable.read(pid)] == []
            assert await process.stop() == report


@linux_only
async def test_f37_a_stop_uses_force_after_its_own_grace(launch: Launcher) -> None:
    async with launch(*program("family", "deaf"), grace_s=600) as process:
        pids = await pids_of(process)
        with cleaned_up(pids):
            begun = time.monotonic()
            report = await process.stop(0.2)
            assert report.code == 128 + signal.SIGKILL
            assert 0.2 <= time.monotonic() - begun < 2
            assert [pid for pid in pids if proctable.read(pid)] == []


@linux_only
async def test_cancelled_stop_still_ends_the_engine(launch: Launcher) -> None:
    async with launch(*program("family", "deaf"), grace_s=600) as process:
        pids = await pids_of(process)
        with cleaned_up(pids):
            stopping = asyncio.create_task(process.stop())
            await asyncio.sleep(0)
            stopping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stopping
            assert await asyncio.to_thread(wait_ended, pids, 3) == []


@linux_only
async def test_f37_b_engine_killed_from_outside_is_noticed_and_reaped(launch: Launcher) -> None:
    async with launch(*program("family", "deaf")) as process:
        pids = await pids_of(process)
        with cleaned_up(pids):
            os.kill(pids[0], signal.SIGKILL)
            report = await asyncio.wait_for(process.wait(), 2)
            assert report.public_reason == "the test engine was ended by SIGKILL"
            assert not process.alive
            assert [pid for pid in pids if proctable.read(pid)] == []


@linux_only
async def test_killed_guard_leaves_nothing_either(launch: Launcher) -> None:
    async with launch(*program("family", "deaf")) as process:
        pids = await pids_of(process)
        with cleaned_up(pids):
            os.kill(process.pid, signal.SIGKILL)
            await asyncio.wait_for(process.wait(), 5)
            assert not process.running
            assert await asyncio.to_thread(wait_ended, pids, 1) == []


@linux_only
async def test_stopped_guard_can_still_be_stopped(launch: Launcher) -> None:
    async with launch(*program("family")) as process:
        pids = await pids_of(process)
        with cleaned_up(pids):
            os.kill(process.pid, signal.SIGSTOP)
            report = await process.stop(0.2)
            assert report.code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
            assert [pid for pid in pids if proctable.read(pid)] == []


def test_works_on_uvloop(launch: Launcher) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def life() -> None:
        async with launch(*program("family", "deaf")) as process:
            pids = await process.wait_ready(lambda: pids_of(process), timeout_s=10)
            with cleaned_up(pids):
                report = await process.stop(0.1)
                assert report.code == 128 + signal.SIGKILL
                assert wait_ended(pids, 1) == []
        async with launch(*program("fails", "1", "0")) as process:
            report = await process.wait()
            assert (report.code, report.lines) == (1, ("loading", "cannot read /secret/weights.gguf"))

    uvloop.run(life())


@linux_only
async def test_f58_h_no_secret_in_the_command_line(tmp_path: Path) -> None:
    secret = "sk-of-a-test"
    environment = child_environment(os.environ, {"LLAMA_API_KEY": secret})
    spec = ProcessSpec("test", program("family"), environment, tmp_path)
    process = await EngineProcess.start(spec)
    try:
        engine = (await pids_of(process))[0]
        public = [command_line(pid) for pid in (process.pid, engine)]
        assert all(b"family" in line for line in public)
        public += contents(tmp_path)
        assert all(secret.encode() not in text for text in public)
        assert proctable.has_environment(engine, f"LLAMA_API_KEY={secret}".encode())
    finally:
        await process.stop(0)


def test_environment_of_an_engine_is_without_our_settings() -> None:
    parent = {"PATH": "/bin", "LLM_RUNTIME_API_KEYS": "sk-1", "LLM_RUNTIME_PORT": "1", "HF_HOME": "/h"}
    environment = child_environment(parent, {"GGML_NO_BACKTRACE": "1"})
    assert environment == {
        "PATH": "/bin",
        "HF_HOME": "/h",
        "PYTHONUNBUFFERED": "1",
        "GGML_NO_BACKTRACE": "1",
    }


def test_scratch_directory_is_private_and_short() -> None:
    scratch = scratch_directory()
    try:
        assert scratch.stat().st_mode & 0o777 == 0o700
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(str(scratch / "engine.sock"))
    finally:
        leftovers.remove_scratch(str(scratch))
    assert not scratch.exists()


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_f38_a_taken_port_is_named_before_the_start(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as foreign:
        try:
            foreign.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here")
        foreign.listen()
        port = foreign.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is taken.*LLM_RUNTIME_VLLM_PORT"):
            ensure_port_free(host, port, "LLM_RUNTIME_VLLM_PORT")
    ensure_port_free(host, port, "LLM_RUNTIME_VLLM_PORT")
