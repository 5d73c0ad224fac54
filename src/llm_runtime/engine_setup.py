"""The configured engine: what it needs is found, its objects are built, and nothing is started."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from llm_runtime.core.clock import Clock
from llm_runtime.engines.assets import resolve_model
from llm_runtime.engines.base import Backend
from llm_runtime.engines.leftovers import remove_leftovers
from llm_runtime.engines.registry import (
    NEEDS_SAFETENSORS,
    NEEDS_WEIGHTS,
    BackendSpec,
    build_backends,
    weights_python,
)
from llm_runtime.engines.weights import resolve_safetensors
from llm_runtime.settings import DEFAULT_ORIGIN, Settings

log = structlog.get_logger(__name__)


def engine_backend(settings: Settings, clock: Clock, environ: Mapping[str, str]) -> Backend:
    """The configured engine, built and not started. Raises ConfigError."""
    return engine_backends(settings, clock, environ)[0]


def engine_backends(settings: Settings, clock: Clock, environ: Mapping[str, str]) -> list[Backend]:
    """The same; several where there are several upstreams."""
    kind = settings.engines.backend
    model_path = None
    model_name = settings.model.name or kind
    weights = None
    if kind in NEEDS_WEIGHTS:
        model_name, model_path = resolve_model(settings.model, environ)
    elif kind in NEEDS_SAFETENSORS:
        python = weights_python(settings.engines, environ)
        model_name, weights = resolve_safetensors(settings.model, python, environ, log.info)
    batching = settings.scheduling
    return build_backends(
        BackendSpec(
            config=settings.engines,
            model_name=model_name,
            model_path=model_path,
            model_created=int(model_path.stat().st_mtime) if model_path else int(clock.wall()),
            max_batch_size=batching.max_batch_size if batching.enable_batching else 1,
            clock=clock,
            environ=environ,
            state_dir=_state_dir(),
            weights=weights,
            chosen_name=settings.model.name,
            default_max_tokens=_chosen(settings, "model.default_max_tokens"),
        )
    )


def _chosen(settings: Settings, name: str) -> Any:
    """The setting where somebody set it; None where it is only the default."""
    return None if settings.origin(name) == DEFAULT_ORIGIN else settings.value(name)


def _state_dir() -> Path:
    """Where running engines are noted, of this user only; what an earlier run left there is ended."""
    folder = Path(tempfile.gettempdir()) / f"llm-runtime-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for leftover in remove_leftovers(str(folder)):
        log.warning("engine.leftover_removed", command=leftover.command, num_killed=len(leftover.killed))
    return folder
