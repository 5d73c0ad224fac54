"""Clusters that a person starts: the walk-through for two machines of docs/scaling.md, both of them here."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from llm_runtime.bench.launch import free_port
from llm_runtime.bench.ray_bed import find_python
from llm_runtime.engines import proctable
from tests.ray.conftest import PATIENCE_S
from tests.support.http import ask, chat_body, connected, get, post

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0
RAYS_PORT = 8000  # where `serve run` cannot be told another
BURST = 6
SETTINGS = (
    "backend=mock engines.native_backend_concurrency=2 telemetry.gpu_poll_interval_s=0 "
    f"admission.request_rate_limit_per_s=0.01 admission.request_rate_limit_burst={BURST}"
)
ONE_MACHINE = (
    "--node-ip-address 127.0.0.1 --min-worker-port 0 --max-worker-port 0 --object-store-memory 100000000 "
    "--disable-usage-stats --block"
)
"""Of `ray start`, so that two of them share one: ports of their own, and an end with the program."""


def written() -> dict[str, str]:
    """The commands of the walk-through, by their first words."""
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Two machines by hand")
    block = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)[0]
    lines = [line.partition(" #")[0].strip() for line in block.splitlines() if not line.startswith("#")]
    words = {" ".join(line.split()[:3]): line for line in lines}
    assert "export RAY_AUTH_MODE=token" in words.values()
    return words


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    """Of a person who has never used Ray. Ray's sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as home:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        yield {
            **kept,
            "HOME": home,
            "RAY_TMPDIR": home,
            "RAY_AUTH_MODE": "token",
            "PATH": f"{Path(find_python()).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
        }


@asynccontextmanager
async def running(line: str, environ: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program until the end of the block, and everything below it."""
    process = await asyncio.create_subprocess_exec(
        *shlex.split(line), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL, env=environ, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        below = proctable.descendants(process.pid, proctable.table())
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 20.0)
        for pid in (process.pid, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.wait()


async def done(line: str, environ: dict[str, str]) -> tuple[int, str]:
    """Exit status and what a program says."""
    process = await asyncio.create_subprocess_exec(
        *shlex.split(line), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, env=environ, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), START_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode is not None
    return process.returncode, output.decode("utf-8", "replace")


async def until_nodes(count: int, environ: dict[str, str]) -> None:
    async with asyncio.timeout(START_S):
        while True:
            _, told = await done("ray status", environ)
            if told.count(" node_") == count:
                return
            await asyncio.sleep(0.5)


async def until_ready(port: int, count: int) -> None:
    """Until so many engines are there."""
    async with asyncio.timeout(START_S):
        while True:
            with suppress(OSError, EOFError, KeyError, ValueError):
                (pool,) = (await get(port, "/load")).json()["pools"]
                if sum(seat["state"] == "ready" for seat in pool["replicas"].values()) == count:
                    return
            await asyncio.sleep(0.2)


async def test_two_machines_by_hand(environ: dict[str, str]) -> None:
    """Each has room for one engine, so both are needed. The second wants the token of the first."""
    commands, gcs, port = written(), free_port(), free_port()
    code, _ = await done(commands["ray get-auth-token --generate"].partition(">")[0], environ)
    assert code == 0
    assert (Path(environ["HOME"]) / ".ray" / "auth_token").stat().st_size > 0
    head = commands["ray start --head"].replace("6379", str(gcs)).replace("--num-gpus 1", "--num-cpus 2")
    second = commands["ray start --address"].replace("FIRST:6379", f"127.0.0.1:{gcs}")
    second = second.replace("--num-gpus 1", "--num-cpus 1")
    serve = commands["serve start --http-host"].replace("0.0.0.0", "127.0.0.1")
    serve_run = commands["serve run --address"]
    async with AsyncExitStack() as stack:
        agent = f"--include-dashboard=false --dashboard-agent-listen-port {free_port()}"
        await stack.enter_async_context(running(f"{head} {ONE_MACHINE} {agent}", environ))
        await until_nodes(1, environ)
        agent = f"--dashboard-agent-listen-port {free_port()}"
        with tempfile.TemporaryDirectory() as elsewhere:
            code, told = await done(f"{second} {ONE_MACHINE} {agent}", {**environ, "HOME": elsewhere})
            assert code != 0
            assert "token" in told
        await stack.enter_async_context(running(f"{second} {ONE_MACHINE} {agent}", environ))
        await until_nodes(2, environ)
        code, told = await done(f"{serve} --http-port {port} --proxy-location HeadOnly", environ)
        assert code == 0, told
        await stack.enter_async_context(running(f"{serve_run} {SETTINGS}", environ))
        await until_ready(port, 2)
        async with connected(port) as connection, asyncio.timeout(PATIENCE_S):
            await connection.send(post(chat_body("mock", stream=True, max_tokens=5, ignore_eos=True)))
            reply, stream = await connection.streamed()
        assert (reply.status, stream.done) == (200, True)
        replies = [await ask(port, post(chat_body("mock", max_tokens=1))) for _ in range(BURST)]
        assert {reply.status for reply in replies} == {200, 429}
        assert replies[-1].error["code"] == "rate_limit_exceeded"
        assert int(replies[-1].headers["retry-after"]) > 0


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.skipif(not is_free(RAYS_PORT), reason="Ray's usual port is taken")
async def test_one_command_without_a_cluster(environ: dict[str, str]) -> None:
    """`serve run` alone starts a cluster of its own, and Ctrl-C ends all of it."""
    usual = {name: value for name, value in environ.items() if name != "RAY_AUTH_MODE"}
    async with running(f"serve run serve.app:deployment {SETTINGS}", usual) as process:
        await until_ready(RAYS_PORT, 1)
        async with connected(RAYS_PORT) as connection, asyncio.timeout(PATIENCE_S):
            await connection.send(post(chat_body("mock", stream=True, max_tokens=5, ignore_eos=True)))
            reply, stream = await connection.streamed()
        assert (reply.status, stream.done) == (200, True)
        below = proctable.descendants(process.pid, proctable.table())
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while set(below) & set(proctable.table()):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("setting", "told"),
    [("backend=vllm engines.vllm.gpu_memory_utilization=0.5", "gpu_memory_utilization = 0.5 is for GPUs"),
     ("ray.num_gpus=1", "ray.num_gpus = 1 is for GPUs, and there is none here")],
)  # fmt: skip
async def test_what_needs_a_gpu_is_refused_before_anything_starts(
    environ: dict[str, str], setting: str, told: str
) -> None:
    code, said = await done(f"serve run serve.app:deployment ray.device=cpu {setting}", environ)
    assert code != 0
    assert told in said
    assert not (Path(environ["RAY_TMPDIR"]) / "ray").exists()
