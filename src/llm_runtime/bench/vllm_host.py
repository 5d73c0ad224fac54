"""vLLM behind the runtime, for experiments on the engine: how it is started, and what it says of itself."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.config import Target
from llm_runtime.bench.facts import without_folders
from llm_runtime.bench.launch import free_port, launched
from llm_runtime.bench.sampler import ACCEPT
from llm_runtime.core.errors import BackendError, ConfigError
from llm_runtime.engines.config import BUILTIN_MODEL, ModelConfig, VllmConfig
from llm_runtime.engines.vllm.command import find_python
from llm_runtime.engines.weights import resolve_safetensors

MODEL = "under-test"
"""What clients call the model, whatever it is."""

VLLM_PORT = 8001
"""vLLM's own, to show; a run takes a free one."""

BLOCK_TOKENS = 32
"""Of a block of the cache on CPUs: the smallest that vLLM's kernels there are made for."""

_PREEMPTIONS = re.compile(r"^vllm:num_preemptions_total(?:\{.*\})? (\S+)$", re.MULTILINE)
_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Host:
    """Where experiments run, and on what. Without a word: on processors, with the builtin model.

    python: vLLM's interpreter; None looks where `engines.vllm.python` would. model: builtin, a folder or a
    name of the hub. awq_model: the same weights as a checkpoint of AWQ, likewise; None makes one by rounding
    where the model is a folder of this machine. dummy_weights: of the model's shape, for hosts without any.
    """

    gpu: bool = False
    python: str | None = None
    model: str = BUILTIN_MODEL
    awq_model: str | None = None
    dummy_weights: bool = False

    @property
    def mark(self) -> str:
        """Before the names of results, so that those of a GPU replace no others."""
        return "gpu-" if self.gpu else ""

    def facts(self) -> dict[str, object]:
        """For results, which name no folder of a machine."""
        model, awq = without_folders([self.model, self.awq_model])
        return {"gpu": self.gpu, "model": model, "awq_model": awq, "dummy_weights": self.dummy_weights}

    def interpreter(self) -> str:
        """Raises ConfigError without vLLM."""
        python = find_python(VllmConfig(python=self.python), os.environ)
        if python is None:
            raise ConfigError("this scenario needs vLLM: run `make vllm-env`, which makes .venv-vllm")
        return python


@dataclass(frozen=True, slots=True)
class Engine:
    """One way to start vLLM. model: other weights than the host's. cache_bytes: of the KV cache, without
    weights; memory_share: of a GPU, weights and cache together. None leaves it to vLLM."""

    num_seqs: int
    context_tokens: int
    cache_bytes: int | None = None
    memory_share: float | None = None
    dtype: str = "auto"
    quantisation: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Cache:
    """num_tokens: that fit into the KV cache."""

    num_blocks: int
    block_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_tokens


class Served:
    """A runtime with vLLM behind it. url: the runtime's; page_url: vLLM's own Prometheus page."""

    def __init__(self, url: str, own_url: str) -> None:
        self.url = url
        self.page_url = f"{own_url}/metrics"
        self._own_url = own_url

    async def preemptions(self) -> int:
        """Since its start: requests that were put back into the queue because the cache was full."""
        return read_preemptions(await self._page())

    async def cache(self) -> Cache:
        return read_cache(await self._page())

    async def _page(self) -> str:
        async with LoadClient(Target(self._own_url)) as client:
            page = await client.fetch("/metrics", ACCEPT)
        if page is None:
            raise BackendError("vLLM does not show its metrics")
        return page.decode()


@asynccontextmanager
async def serving(host: Host, engine: Engine) -> AsyncIterator[Served]:
    """Raises what `launched` raises; BackendError with vLLM's last words is what it says of a setting or a
    model that it cannot be started with."""
    port = free_port()
    async with launched(command(host, engine, port), {}, "/health/ready") as url:
        yield Served(url, f"http://127.0.0.1:{port}")


def command(host: Host, engine: Engine, vllm_port: int = VLLM_PORT) -> str:
    """A template for `launch.launched`. Raises ConfigError without vLLM."""
    options: dict[str, object] = {
        "backend": "vllm",
        "model_path": engine.model or host.model,
        "model.name": MODEL,
        "native_backend_concurrency": engine.num_seqs,
        "engines.vllm.python": host.interpreter(),
        "engines.vllm.port": vllm_port,
        "engines.vllm.max_model_len": engine.context_tokens,
        "engines.vllm.dtype": engine.dtype,
    }
    if arguments := _arguments(host, engine):
        options["engines.vllm.extra_arguments"] = shlex.join(arguments)
    if engine.memory_share is not None:
        options["engines.vllm.gpu_memory_utilization"] = engine.memory_share
    settings = " ".join(shlex.join(("-o", f"{name}={value}")) for name, value in options.items())
    return f"llm-runtime serve --port {{port}} {settings}"


def _arguments(host: Host, engine: Engine) -> list[str]:
    """On CPUs nothing is compiled: that takes minutes at each start, and gains little there."""
    arguments = [] if host.gpu else ["--enforce-eager", "--block-size", str(BLOCK_TOKENS)]
    if engine.cache_bytes is not None:
        arguments += ["--kv-cache-memory-bytes", str(engine.cache_bytes)]
    if engine.quantisation is not None:
        arguments += ["--quantization", engine.quantisation]
    if host.dummy_weights:
        arguments += ["--load-format", "dummy"]
    return arguments


def local_folder(host: Host) -> Path | None:
    """Of the model's weights on this machine; None for what vLLM fetches by itself. Blocks, for minutes
    where the builtin model is converted. Raises ConfigError."""
    _, weights = resolve_safetensors(ModelConfig(path=host.model), host.interpreter(), os.environ)
    return Path(weights) if Path(weights).is_dir() else None


def read_preemptions(page: str) -> int:
    """Raises BackendError where vLLM does not count them: a missing figure is not a zero."""
    found = _PREEMPTIONS.findall(page)
    if not found:
        raise BackendError("vLLM's page does not count preemptions")
    return int(sum(map(float, found)))


def read_cache(page: str) -> Cache:
    """Raises BackendError where vLLM does not say how large its cache is."""
    match = _CACHE.search(page)
    labels = dict(_LABEL.findall(match[1])) if match else {}
    try:
        return Cache(int(labels["num_gpu_blocks"]), int(labels["block_size"]))
    except (KeyError, ValueError) as error:
        raise BackendError("vLLM's page does not tell the size of its cache") from error
