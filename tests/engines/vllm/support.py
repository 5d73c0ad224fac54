"""The environment and the weights for tests on the real vLLM, and an engine that tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from llm_runtime.core.clock import SystemClock
from llm_runtime.engines.base import BackendState
from llm_runtime.engines.child_backend import ChildBackend, EngineHost
from llm_runtime.engines.config import BUILTIN_MODEL, SupervisionConfig, VllmConfig
from llm_runtime.engines.vllm.command import ENVIRONMENT, ServedModel
from llm_runtime.engines.weights import SafetensorsStore
from tests.engines.conformance import Engine

B = TypeVar("B", bound=ChildBackend[Any])

MODEL = "smollm2-135m"
NUM_SLOTS = 8
SUPERVISION = SupervisionConfig(restart_backoff_s=0.1)

CONFIG = VllmConfig(
    max_model_len=2048,
    # float32, because at bfloat16 rounding can make equal requests differ. Any tool call needs a parser.
    dtype="float32",
    extra_arguments="--enforce-eager --enable-auto-tool-choice --tool-call-parser hermes",
)

ENGINE = Engine(
    model=MODEL,
    prompt_keeping_busy="Tell me everything about rivers. " * 150,
    cancel_within_s=30.0,
    answer_within_s=180.0,
)
"""Times for a busy machine without a GPU."""


def vllm_python() -> str:
    """The interpreter of `make vllm-env`'s environment."""
    python = Path(__file__).parents[3] / ENVIRONMENT / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python} is missing: run `make vllm-env`", pytrace=False)
    return str(python)


def served_model() -> ServedModel:
    """The embedded model, converted once and kept in the cache folder."""
    return ServedModel(MODEL, str(SafetensorsStore(os.environ).ensure(BUILTIN_MODEL, vllm_python())))


def host(state_dir: Path) -> EngineHost:
    # 1 GiB of key-value cache: the default is half of the machine's memory.
    environ = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    return EngineHost(SUPERVISION, SystemClock(), environ, state_dir)


class SharedEngine(Generic[B]):
    """Starting takes a minute or more, so tests share one engine; one that a test closed is replaced."""

    def __init__(self, make: Callable[[], B]) -> None:
        self._make = make
        self._backend: B | None = None

    async def ready(self) -> B:
        backend = self._backend
        if backend is None or backend.status.state is BackendState.STOPPED:
            backend = self._backend = self._make()
            await backend.start(lambda: None)
        return backend

    async def close(self) -> None:
        if self._backend is not None:
            await self._backend.aclose()
