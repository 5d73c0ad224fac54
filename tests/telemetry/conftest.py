"""Fixtures of the telemetry tests."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from llm_runtime.telemetry.logging import StandardHandler
from tests.telemetry.log_stream import Stream


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a shell script called nvidia-smi in front of the PATH."""

    def install(script: str) -> Path:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return path

    return install


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    names = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
    before = {
        name: (logger.level, logger.propagate, list(logger.handlers))
        for name in names
        if (logger := logging.getLogger(name))
    }
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    for handler in list(root.handlers):
        if isinstance(handler, StandardHandler):
            root.removeHandler(handler)
    root.setLevel(level)
    for name, (old_level, propagate, handlers) in before.items():
        logger = logging.getLogger(name)
        logger.setLevel(old_level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


@pytest.fixture
def stream() -> Stream:
    return Stream()
