"""The real engine: the embedded model under llama.cpp, in a child process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from llm_runtime.core.clock import SystemClock
from llm_runtime.engines.assets import ModelStore
from llm_runtime.engines.child_backend import EngineHost
from llm_runtime.engines.config import BUILTIN_MODEL, LlamaCppConfig, SupervisionConfig
from llm_runtime.engines.llama_cpp.backend import LlamaCppBackend

MODEL = "smollm2-135m"
CONFIG = LlamaCppConfig(n_threads=1)
NUM_SLOTS = 4
SUPERVISION = SupervisionConfig(restart_backoff_s=0.1)


def make_backend(
    state_dir: Path, supervision: SupervisionConfig = SUPERVISION, **changes: object
) -> LlamaCppBackend:
    return LlamaCppBackend(
        replace(CONFIG, **changes),  # type: ignore[arg-type]
        EngineHost(supervision, SystemClock(), os.environ, state_dir),
        num_slots=NUM_SLOTS,
        model=MODEL,
        model_path=ModelStore(os.environ).ensure(BUILTIN_MODEL),
        model_created=1,
    )


@asynccontextmanager
async def running(state_dir: Path, **changes: object) -> AsyncIterator[LlamaCppBackend]:
    backend = make_backend(state_dir, SUPERVISION, **changes)
    await backend.start(lambda: None)
    try:
        yield backend
    finally:
        await backend.aclose()


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[LlamaCppBackend]:
    async with running(tmp_path) as backend:
        yield backend
