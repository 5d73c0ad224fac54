"""The real engine, the embedded model's weights under Transformers in a child process; and its HTTP side
alone, with a model that computes nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from llm_runtime.core.clock import SystemClock
from llm_runtime.engines.child_backend import EngineHost
from llm_runtime.engines.config import BUILTIN_MODEL, HfConfig, SupervisionConfig
from llm_runtime.engines.hf.backend import HfBackend, find_python
from llm_runtime.engines.weights import SafetensorsStore
from tests.engines.hf.serving import Running, serving

MODEL = "smollm2-135m"
CONFIG = HfConfig(n_threads=1)


@pytest.fixture(scope="session")
def weights() -> Path:
    """Made from the embedded model, once per machine."""
    return SafetensorsStore(os.environ).ensure(BUILTIN_MODEL, find_python(CONFIG, os.environ))


def make_backend(weights: Path | str, state_dir: Path, **changes: object) -> HfBackend:
    host = EngineHost(SupervisionConfig(restart_backoff_s=0.1), SystemClock(), os.environ, state_dir)
    return HfBackend(
        replace(CONFIG, **changes),  # type: ignore[arg-type]
        host,
        model=MODEL,
        weights=str(weights),
        model_created=1,
    )


@asynccontextmanager
async def running_backend(weights: Path, state_dir: Path, **changes: object) -> AsyncIterator[HfBackend]:
    backend = make_backend(weights, state_dir, **changes)
    await backend.start(lambda: None)
    try:
        yield backend
    finally:
        await backend.aclose()


@pytest.fixture
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with serving(str(tmp_path_factory.mktemp("s") / "s")) as running:
        yield running
