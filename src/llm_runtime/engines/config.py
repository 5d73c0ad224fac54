"""Settings of the engines; each adapter reads only its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

BackendKind = Literal["llama.cpp", "mock"]

BUILTIN_MODEL = "builtin:smollm2-135m"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """path: a GGUF file or `builtin:smollm2-135m`.

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

    native_backend_concurrency: slots. n_ctx: context tokens of one request (the engine gets it
    times slots). n_threads: None chooses (see docs/configuration.md). n_batch: None means
    max(slots, 16), the largest that still cancels within 500 ms in prefill.
    cache_ram_mib: the engine's host-memory prompt cache.
    """

    server_binary: str | None = None
    native_backend_concurrency: Annotated[int, Ge(1)] = 8
    n_ctx: Annotated[int, Ge(64)] = 2048
    n_threads: Annotated[int, Ge(1)] | None = None
    n_gpu_layers: Annotated[int, Ge(0)] = 0
    n_batch: Annotated[int, Ge(1)] | None = None
    cache_ram_mib: Annotated[int, Ge(0)] = 256


@dataclass(frozen=True, slots=True)
class SupervisionConfig:
    """The engine child's life. Seconds, except counts.

    max_restarts within restart_window_s makes the engine FAILED; stop_grace_s lies between SIGTERM
    and SIGKILL; cancel_timeout_s after an unconfirmed cancellation the lease turns suspect.
    """

    start_timeout_s: Annotated[float, Gt(0)] = 120.0
    stop_grace_s: Annotated[float, Gt(0)] = 5.0
    restart_backoff_s: Annotated[float, Gt(0)] = 0.5
    restart_backoff_max_s: Annotated[float, Gt(0)] = 30.0
    max_restarts: Annotated[int, Ge(0)] = 5
    restart_window_s: Annotated[float, Gt(0)] = 60.0
    cancel_timeout_s: Annotated[float, Gt(0)] = 10.0


@dataclass(frozen=True, slots=True)
class EnginesConfig:
    backend: BackendKind = "llama.cpp"
    mock: MockConfig = MockConfig()
    llama_cpp: LlamaCppConfig = LlamaCppConfig()
    supervision: SupervisionConfig = SupervisionConfig()
