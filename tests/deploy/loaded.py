"""Servers under every kind of load, with engines and exporters beside them: all that Prometheus scrapes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from llm_runtime.engines.assets import ModelStore
from llm_runtime.engines.config import BUILTIN_MODEL
from llm_runtime.engines.llama_cpp.command import HOST_MODULE, LISTENING
from tests.deploy.exporters import dcgm
from tests.deploy.exporters.replay import replay, serving
from tests.deploy.places import MONITORING
from tests.support.http import ask, chat_body, connected, post
from tests.support.scripted import MODEL as SCRIPTED
from tests.support.scripted import ScriptedBackend
from tests.support.server import MOCK, Served, serve
from tests.telemetry.smi import NORMAL as SMI_TABLE

KEYS = ("sk-scrape-and-more", "sk-another")
VLLM = Path(__file__).parent / "exporters" / "vllm.prom"
VLLM_GAUGES = {
    "vllm:kv_cache_usage_perc": 0.42,
    "vllm:num_requests_running": 7.0,
    "vllm:num_requests_waiting": 0.0,
}

REFUSALS = {503, 504}
PAUSE_S = 0.1
"""Between waves: the machine has other work, such as scraping."""

Targets = Mapping[str, list[str]]
"""`host:port` of what is to be scraped, by the job that scrapes it."""


@asynccontextmanager
async def everything(folder: Path) -> AsyncIterator[Targets]:
    """Under load until the block is left. Two servers: a mock that is busy, and one whose engine does not
    give a cancelled request's slots back."""
    with ExitStack() as stack:
        stack.enter_context(_gpu_program(folder))
        vllm = stack.enter_context(serving(replay(VLLM.read_text(), VLLM_GAUGES)))
        gpus = stack.enter_context(serving(replay(dcgm.recorded(MONITORING / "dcgm-counters.csv"), {})))
        llama = stack.enter_context(_llama_cpp())
        async with _busy() as busy, _suspect() as suspect:
            tasks = [asyncio.create_task(_load(busy)), asyncio.create_task(_load_llama(llama))]
            try:
                yield {
                    "llm-runtime": [f"127.0.0.1:{busy.port}", f"127.0.0.1:{suspect.port}"],
                    "vllm": [vllm],
                    "llama-cpp": [llama],
                    "dcgm": [gpus],
                }
            finally:
                for task in tasks:
                    task.cancel()
                for ended in await asyncio.gather(*tasks, return_exceptions=True):
                    assert isinstance(ended, asyncio.CancelledError), ended


@asynccontextmanager
async def _busy() -> AsyncIterator[Served]:
    async with serve(
        MOCK,
        server__api_keys=",".join(KEYS),
        scheduling__policy="priority",
        scheduling__max_batch_size="2",
        admission__max_queue_size="3",
        limits__queue_timeout_s="0.1",
        limits__request_timeout_s="0.3",
        engines__mock__decode_latency_ms="5",
        telemetry__gpu_poll_interval_s="0.2",
    ) as served:
        yield served


@asynccontextmanager
async def _suspect() -> AsyncIterator[Served]:
    backend = ScriptedBackend()
    backend.confirms_cancels = False
    settings = {**MOCK, "server.api_keys": ",".join(KEYS), "engines.supervision.cancel_timeout_s": "0.05"}
    async with serve(settings, backend=backend) as served:
        async with connected(served.port) as client:
            await client.send(_chat(KEYS[0], model=SCRIPTED, stream=True))
            stream = await backend.got(0)
        await backend.cancelled(stream)
        await served.recorder.until(lambda: bool(served.recorder.suspects), "a suspect lease")
        yield served


def _chat(key: str, **fields: Any) -> bytes:
    return post(chat_body(fields.pop("model", "mock"), **fields), headers={"authorization": f"Bearer {key}"})


async def _load(server: Served) -> None:
    """In waves: streams and plain replies of both tenants and all classes; more than the queue takes;
    replies that take longer than a limit; a client that leaves; a call that is no request."""
    port = server.port
    while True:
        async with connected(port) as leaving:
            await leaving.send(_chat(KEYS[0], stream=True, max_tokens=400, ignore_eos=True))
            replies = await asyncio.gather(
                *(ask(port, _chat(KEYS[0], max_tokens=8, priority=number)) for number in range(0, 10, 2)),
                *(ask(port, _chat(KEYS[1], max_tokens=400, ignore_eos=True)) for _ in range(2)),
                ask(port, post(b"{", headers={"authorization": f"Bearer {KEYS[1]}"})),
            )
        await _streamed(port)
        assert {reply.status for reply in replies} <= REFUSALS | {200, 400}
        await asyncio.sleep(PAUSE_S)


async def _streamed(port: int) -> None:
    async with connected(port) as client:
        await client.send(_chat(KEYS[1], stream=True, max_tokens=20, ignore_eos=True))
        if (await client.head()).status == 200:
            while await client.chunk():
                pass


async def _load_llama(address: str) -> None:
    port = int(address.rpartition(":")[2])
    while True:
        reply = await ask(port, post(chat_body("smollm2-135m", max_tokens=2)))
        assert reply.status == 200
        await asyncio.sleep(PAUSE_S)


@contextmanager
def _gpu_program(folder: Path) -> Iterator[None]:
    """Puts an nvidia-smi that works in front of the PATH."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{SMI_TABLE}END\n")
    program.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{program.parent}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


@contextmanager
def _llama_cpp() -> Iterator[str]:
    """The real engine, on a port instead of its private socket."""
    model = ModelStore(os.environ).ensure(BUILTIN_MODEL)
    command = [
        *(sys.executable, "-P", "-m", HOST_MODULE, "--port", "0", "--slots", "1", "--ctx-per-slot", "256"),
        *("--model", str(model), "--alias", "smollm2-135m"),
    ]
    with Popen(command, stdout=PIPE, stderr=DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(LISTENING), line
            yield line.removeprefix(LISTENING).strip().removeprefix("http://")
        finally:
            process.kill()
