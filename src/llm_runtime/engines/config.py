"""Settings of the engines; each adapter reads only its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

BackendKind = Literal["llama.cpp", "vllm", "vllm-inprocess", "hf", "openai", "mock"]

DEFAULT_CONCURRENCY: Mapping[BackendKind, int] = MappingProxyType(
    {"llama.cpp": 8, "vllm": 128, "vllm-inprocess": 128, "openai": 256}
)
"""Sequences at once of engines that batch by themselves, where nothing is configured."""

_BETWEEN_URLS = re.compile(r"\s*,\s*(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)

BUILTIN_MODEL = "builtin:smollm2-135m"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """path: a GGUF file, a folder of safetensors, `hf:ORG/NAME[:FILE]` or `builtin:smollm2-135m`.

    name: what clients ask for and see; by default the builtin's name or the file's stem.
    default_max_tokens: the cap when a request names none.
    """

    path: str = BUILTIN_MODEL
    name: str | None = None
    default_max_tokens: Annotated[int, Ge(1)] = 512


@dataclass(frozen=True, slots=True)
class MockConfig:
    """prefill_latency_ms: once per batch; decode_latency_ms: per step, shared by the batch."""

    prefill_latency_ms: Annotated[float, Ge(0)] = 25.0
    decode_latency_ms: Annotated[float, Ge(0)] = 10.0
    context_tokens: Annotated[int, Ge(1)] = 8192


@dataclass(frozen=True, slots=True)
class LlamaCppConfig:
    """server_binary: an external `llama-server` to run instead of the embedded `xllamacpp`.

    n_ctx: context tokens of one request (the engine gets it times slots). n_threads: None chooses
    (see docs/configuration.md). n_batch: None means max(slots, 16), the largest that still cancels
    within 500 ms in prefill. cache_ram_mib: the engine's host-memory prompt cache. embeddings: serve
    them too, of the last token. lora_adapters: `NAME=FILE[:SCALE]` each, served under their names.
    """

    server_binary: str | None = None
    n_ctx: Annotated[int, Ge(64)] = 2048
    n_threads: Annotated[int, Ge(1)] | None = None
    n_gpu_layers: Annotated[int, Ge(0)] = 0
    n_batch: Annotated[int, Ge(1)] | None = None
    cache_ram_mib: Annotated[int, Ge(0)] = 256
    embeddings: bool = True
    lora_adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """Of `vllm` and `vllm-inprocess`; None leaves a value to vLLM.

    command: the program with its first arguments, as a shell would split them, instead of vLLM's own
    entry point. python: the interpreter of vLLM's environment; None looks for one (see docs/engines.md).
    port: on loopback; None: a private Unix socket. gpu_memory_utilization: share of the GPU's memory.
    max_model_len: tokens of prompt and answer together. max_num_batched_tokens: in one step of the engine.
    dtype: of weights and arithmetic; auto: as the weights say. extra_arguments: for `vllm serve`, as a shell
    would split them. start_timeout_s: loading and compiling a large model takes minutes.
    """

    command: str | None = None
    python: str | None = None
    port: Annotated[int, Ge(1), Le(65535)] | None = None
    gpu_memory_utilization: Annotated[float, Gt(0), Le(1)] | None = None
    max_model_len: Annotated[int, Ge(1)] | None = None
    max_num_batched_tokens: Annotated[int, Ge(1)] | None = None
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    extra_arguments: str = ""
    start_timeout_s: Annotated[float, Gt(0)] = 600.0


@dataclass(frozen=True, slots=True)
class HfConfig:
    """python: an interpreter with torch and transformers; None: ours where it has them, else that of
    vLLM's environment. dtype: of weights and arithmetic; auto: as the weights say. device: auto: a GPU
    where there is one. n_threads: as for llama.cpp. start_timeout_s: for loading.
    """

    python: str | None = None
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    device: str = "auto"
    n_threads: Annotated[int, Ge(1)] | None = None
    start_timeout_s: Annotated[float, Gt(0)] = 600.0


def split_urls(text: str) -> list[str]:
    """Several URLs in one text, separated by commas; a comma within a URL separates nothing."""
    return [url for url in _BETWEEN_URLS.split(text.strip()) if url]


@dataclass(frozen=True, slots=True)
class OpenAIConfig:
    """An OpenAI-compatible server by URL, or several that serve the same.

    url: with a path it is taken as it is, as the SDKs' base URL; without one `/v1` is added; several are
    separated by commas. models:
    `name` or `served=upstream`; empty: all that the server lists. endpoints: what it has; empty:
    everything, as far as is known. headers: `Name: value`, sent with
    every request. tls_ca_file: PEM certificates to trust instead of the system's.
    connect_timeout_s: until a connection, with TLS, stands. health_path: below the server's root; None:
    `/health`, and where there is none the list of models. max_health_misses: in a row, until the server
    counts as down.
    """

    url: str | None = None
    api_key: str | None = None
    models: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    tls_verify: bool = True
    tls_ca_file: str | None = None
    connect_timeout_s: Annotated[float, Gt(0)] = 5.0
    health_path: str | None = None
    health_interval_s: Annotated[float, Gt(0)] = 5.0
    health_timeout_s: Annotated[float, Gt(0)] = 5.0
    max_health_misses: Annotated[int, Ge(1)] = 3

    @property
    def each(self) -> tuple[OpenAIConfig, ...]:
        """One for each URL; itself where there is none."""
        return tuple(replace(self, url=url) for url in split_urls(self.url or "")) or (self,)


@dataclass(frozen=True, slots=True)
class SupervisionConfig:
    """The engine child's life. Seconds, except counts.

    max_restarts within restart_window_s makes the engine FAILED; stop_grace_s lies between SIGTERM
    and SIGKILL; cancel_timeout_s after an unconfirmed cancellation the lease turns suspect;
    stall_timeout_s without any progress of an engine that holds work it is restarted.
    """

    start_timeout_s: Annotated[float, Gt(0)] = 120.0
    stop_grace_s: Annotated[float, Gt(0)] = 5.0
    restart_backoff_s: Annotated[float, Gt(0)] = 0.5
    restart_backoff_max_s: Annotated[float, Gt(0)] = 30.0
    max_restarts: Annotated[int, Ge(0)] = 5
    restart_window_s: Annotated[float, Gt(0)] = 60.0
    cancel_timeout_s: Annotated[float, Gt(0)] = 10.0
    stall_timeout_s: Annotated[float, Gt(0)] | None = 60.0


@dataclass(frozen=True, slots=True)
class EnginesConfig:
    """native_backend_concurrency: sequences that an engine which batches by itself works on at once;
    None: `DEFAULT_CONCURRENCY`."""

    backend: BackendKind = "llama.cpp"
    native_backend_concurrency: Annotated[int, Ge(1)] | None = None
    mock: MockConfig = MockConfig()
    llama_cpp: LlamaCppConfig = LlamaCppConfig()
    vllm: VllmConfig = VllmConfig()
    hf: HfConfig = HfConfig()
    openai: OpenAIConfig = OpenAIConfig()
    supervision: SupervisionConfig = SupervisionConfig()

    @property
    def concurrency(self) -> int:
        """Sequences at once of the chosen engine, if it batches by itself."""
        return self.native_backend_concurrency or DEFAULT_CONCURRENCY.get(self.backend, 1)
