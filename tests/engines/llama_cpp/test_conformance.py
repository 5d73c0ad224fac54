"""The shared suite on the real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llm_runtime.engines.base import Backend
from tests.engines.conformance import BackendConformance, Engine
from tests.engines.llama_cpp.conftest import MODEL, running

pytestmark = pytest.mark.engine


class TestLlamaCpp(BackendConformance):
    engine = Engine(
        model=MODEL, prompt_keeping_busy="Tell me everything about rivers. " * 25, answer_within_s=60.0
    )

    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[Backend]:
        async with running(tmp_path) as backend:
            yield backend
